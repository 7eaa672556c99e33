//! The rules of arbitration, each with exact numbers at its edge. Amounts are MiB.

mod accounts;
mod asks;
mod barriers;
mod books;
mod desk;
mod growth;
mod growth_at_limit;
mod guarantees;
mod limits;
mod members;
mod order;
mod recall;
mod segments;
mod sessions;
mod suspension;
