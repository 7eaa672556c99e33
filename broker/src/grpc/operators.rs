//! The service for operators, on their socket only.

use std::time::Duration;

use gpulease_proto::v1;
use gpulease_proto::v1::operators_server::Operators;
use gpulease_words::{Bytes, LeaseId};
use tonic::{Request, Response, Status};

use super::budgets::{account_budget, not_changed};
use super::encode::denied;
use super::{Services, caller};
use crate::driver::Standing;

#[tonic::async_trait]
impl Operators for Services {
    async fn recall(&self, request: Request<v1::RecallRequest>) -> Result<Response<v1::RecallReply>, Status> {
        let caller = caller(&request)?;
        let v1::RecallRequest { lease_id, bytes, deadline_in_ms } = request.into_inner();
        let (bytes, within) = (Bytes::new(bytes), Duration::from_millis(deadline_in_ms));
        let recalled = self.desk.recall(&caller, LeaseId::new(lease_id), bytes, within).await;
        Ok(Response::new(match recalled {
            Ok(bytes) => v1::RecallReply { denied: None, bytes: bytes.get() },
            Err(refusal) => v1::RecallReply { denied: Some(denied(&refusal, &self.names)), bytes: 0 },
        }))
    }

    async fn end(&self, request: Request<v1::EndRequest>) -> Result<Response<v1::EndReply>, Status> {
        let caller = caller(&request)?;
        let lease = LeaseId::new(request.into_inner().lease_id);
        Ok(Response::new(match self.desk.end(&caller, Standing::Operator, lease).await {
            Ok(draining) => v1::EndReply { denied: None, draining_bytes: draining.get() },
            Err(refusal) => v1::EndReply { denied: Some(denied(&refusal, &self.names)), draining_bytes: 0 },
        }))
    }

    async fn set_budget(
        &self,
        request: Request<v1::SetBudgetRequest>,
    ) -> Result<Response<v1::SetBudgetReply>, Status> {
        use v1::set_budget_reply::Outcome;
        let caller = caller(&request)?;
        let outcome = match self.try_set_budget(&caller, request.into_inner()).await {
            Ok(listed) => Outcome::Budget(account_budget(&listed, &self.names)),
            Err(why) => Outcome::Denied(not_changed(&why, &self.names)?),
        };
        Ok(Response::new(v1::SetBudgetReply { outcome: Some(outcome) }))
    }

    async fn remove_budget(
        &self,
        request: Request<v1::RemoveBudgetRequest>,
    ) -> Result<Response<v1::RemoveBudgetReply>, Status> {
        let caller = caller(&request)?;
        let refused = self.try_remove_budget(&caller, request.into_inner()).await.err();
        let denied = refused.map(|why| not_changed(&why, &self.names)).transpose()?;
        Ok(Response::new(v1::RemoveBudgetReply { denied }))
    }
}
