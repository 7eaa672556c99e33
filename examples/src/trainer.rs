//! Training on digits: a data set that fills the memory it is given, and a network beside it.

use anyhow::{Result, ensure};

use crate::backend::{Arena, Augmentation, Backend, OutOfRoom, Read, Span, Stride};
use crate::dice::{mix, throw};
use crate::digits::{CLASSES, Digits, PIXELS, TESTING, TRAINING};
use crate::network::{Network, Plan};

/// Something to do with a device and the memory of a lease, while both may be used.
pub trait Work {
    /// What it yields.
    type Output;

    /// Does it. The same memory comes in the same order each time; new memory comes last.
    ///
    /// # Errors
    /// What the device reports, or too little memory.
    fn on<B: Backend>(self, backend: &mut B, arena: Arena<B::Span>) -> Result<Self::Output>;
}

/// A training run, without its memory: what to train, and how far it is.
///
/// The data set is made of batches of augmented digits and fills all memory that the network leaves. A step
/// trains on one of them, drawn at random. Everything follows from the seed and the sizes of the segments.
#[derive(Clone, Debug)]
pub struct Trainer {
    plan: Plan,
    seed: u64,
    steps: u64,
    batches: usize,
    batches_at_most: usize,
}

impl Trainer {
    const WIDTHS: [usize; 4] = [PIXELS, 128, 64, CLASSES];
    const BATCH: usize = 128;
    const RATE: f32 = 0.003;
    /// What is filled in one piece: 32.5 MiB, some 30 ms on a host.
    const BATCHES_A_FILL: usize = 1024;

    /// A run that nothing was done for yet.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let plan = Plan { widths: Self::WIDTHS.to_vec(), batch: Self::BATCH };
        Self { plan, seed, steps: 0, batches: 0, batches_at_most: usize::MAX }
    }

    /// Keeps the data set to `batches`, however much memory there is.
    #[must_use]
    pub fn with_batches_at_most(self, batches: usize) -> Self {
        Self { batches_at_most: batches, ..self }
    }

    /// Steps done.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Samples in the data set.
    #[must_use]
    pub fn samples(&self) -> u64 {
        (self.batches * self.plan.batch) as u64
    }

    /// Writes the digits and a fresh network.
    pub fn prepare(&mut self) -> impl Work<Output = ()> {
        Prepare(self)
    }

    /// Fills some of the memory with batches that are not in the data set yet; where memory has gone, so have its
    /// batches. To be repeated until it is done: no piece of the work takes long.
    pub fn fill(&mut self) -> impl Work<Output = Filling> {
        Fill(self)
    }

    /// Trains `steps` steps; yields the mean loss of their samples.
    pub fn train(&mut self, steps: u64) -> impl Work<Output = f64> {
        Train(self, steps)
    }

    /// Tries the network on digits that it was not trained on; yields the share it names rightly.
    pub fn test(&self) -> impl Work<Output = f64> {
        Test(self)
    }

    /// A check sum of the network's parameters, to compare two runs bit by bit.
    pub fn fingerprint(&self) -> impl Work<Output = u64> {
        Fingerprint(self)
    }

    fn lay_out<S: Span>(&self, mut arena: Arena<S>) -> Result<Table<S>, OutOfRoom> {
        Ok(Table {
            network: Network::lay_out(&self.plan, &mut arena)?,
            images: arena.take(TRAINING * PIXELS)?,
            classes: arena.take(TRAINING)?,
            tests: arena.take(TESTING * PIXELS)?,
            shelves: arena.into_rest(),
        })
    }

    /// Floats of a batch: its images and, behind them, their classes.
    fn batch_floats(&self) -> usize {
        self.plan.batch * (PIXELS + 1)
    }
}

/// How far the filling is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filling {
    /// There is room for more.
    Begun,
    /// The memory is full.
    Done,
}

/// The memory as a run uses it.
struct Table<S> {
    network: Network<S>,
    /// The digits that batches are made from.
    images: S,
    classes: S,
    tests: S,
    /// The batches, as many as fit each segment.
    shelves: Vec<S>,
}

struct Prepare<'t>(&'t mut Trainer);

impl Work for Prepare<'_> {
    type Output = ();

    fn on<B: Backend>(self, backend: &mut B, arena: Arena<B::Span>) -> Result<()> {
        let Self(trainer) = self;
        let mut table = trainer.lay_out(arena)?;
        let (training, testing) = (Digits::training(), Digits::testing());
        table.network.reset(backend, &trainer.plan.initial_parameters(mix(trainer.seed)))?;
        backend.upload(table.images.write(0..training.images.len()), &training.images)?;
        backend.upload(table.classes.write(0..training.count()), &training.classes)?;
        backend.upload(table.tests.write(0..testing.images.len()), &testing.images)?;
        (trainer.steps, trainer.batches) = (0, 0);
        Ok(())
    }
}

struct Fill<'t>(&'t mut Trainer);

impl Work for Fill<'_> {
    type Output = Filling;

    fn on<B: Backend>(self, backend: &mut B, arena: Arena<B::Span>) -> Result<Filling> {
        let Self(trainer) = self;
        let mut table = trainer.lay_out(arena)?;
        let each = trainer.batch_floats();
        let room: usize = table.shelves.iter().map(|shelf| shelf.floats() / each).sum();
        let room = room.min(trainer.batches_at_most);
        ensure!(room > 0, "no batch fits beside the network: ask for more memory");
        let new = trainer.batches.min(room)..room.min(trainer.batches + Trainer::BATCHES_A_FILL);
        let mut before = 0;
        for shelf in &mut table.shelves {
            let here = before..before + shelf.floats() / each;
            let (start, end) = (new.start.clamp(here.start, here.end), new.end.clamp(here.start, here.end));
            let which = Augmentation {
                seed: trainer.seed,
                first: (start * trainer.plan.batch) as u64,
                batch: trainer.plan.batch,
            };
            let out = shelf.write((start - here.start) * each..(end - here.start) * each);
            let (images, classes) = (&table.images, &table.classes);
            backend.augment(
                out,
                images.read(0..images.floats()),
                classes.read(0..classes.floats()),
                which,
            )?;
            before = here.end;
        }
        trainer.batches = new.end;
        Ok(if new.end < room { Filling::Begun } else { Filling::Done })
    }
}

struct Train<'t>(&'t mut Trainer, u64);

impl Work for Train<'_> {
    type Output = f64;

    fn on<B: Backend>(self, backend: &mut B, arena: Arena<B::Span>) -> Result<f64> {
        let Self(trainer, steps) = self;
        let mut table = trainer.lay_out(arena)?;
        table.network.forget_losses(backend)?;
        for _ in 0..steps {
            let drawn = throw(!trainer.seed, trainer.steps, trainer.batches);
            let (images, classes) = batch::<B>(trainer, &table.shelves, drawn);
            trainer.steps += 1;
            table.network.step(backend, images, classes, Stride::at(Trainer::RATE, trainer.steps))?;
        }
        let samples = steps * trainer.plan.batch as u64;
        Ok(table.network.losses(backend)? / samples as f64)
    }
}

/// The images and classes of the batch with that number.
fn batch<'s, B: Backend>(
    trainer: &Trainer,
    shelves: &'s [B::Span],
    number: usize,
) -> (Read<'s, B>, Read<'s, B>) {
    let each = trainer.batch_floats();
    let mut place = number;
    for shelf in shelves {
        let here = shelf.floats() / each;
        if place < here {
            let (start, images) = (place * each, trainer.plan.batch * PIXELS);
            return (shelf.read(start..start + images), shelf.read(start + images..start + each));
        }
        place -= here;
    }
    panic!("batch {number} of {} is on no shelf: memory has gone", trainer.batches)
}

struct Test<'t>(&'t Trainer);

impl Work for Test<'_> {
    type Output = f64;

    fn on<B: Backend>(self, backend: &mut B, arena: Arena<B::Span>) -> Result<f64> {
        let Self(trainer) = self;
        let mut table = trainer.lay_out(arena)?;
        let digits = Digits::testing();
        let mut right = 0;
        for (n, classes) in digits.classes.chunks(trainer.plan.batch).enumerate() {
            let start = n * trainer.plan.batch * PIXELS;
            let images = table.tests.read(start..start + classes.len() * PIXELS);
            let scores = table.network.scores(backend, images, classes.len())?;
            let pairs = scores.chunks_exact(CLASSES).zip(classes);
            right += pairs.filter(|(score, class)| highest(score) == **class as usize).count();
        }
        Ok(right as f64 / digits.count() as f64)
    }
}

fn highest(scores: &[f32]) -> usize {
    (1..scores.len()).fold(0, |best, n| if scores[n] > scores[best] { n } else { best })
}

struct Fingerprint<'t>(&'t Trainer);

impl Work for Fingerprint<'_> {
    type Output = u64;

    fn on<B: Backend>(self, backend: &mut B, arena: Arena<B::Span>) -> Result<u64> {
        let table = self.0.lay_out(arena)?;
        let parameters = table.network.parameters(backend)?;
        Ok(parameters.iter().fold(0, |sum, p| mix(sum ^ u64::from(p.to_bits()))))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::backend::host::Host;
    use crate::digits::SIDE;

    /// Memory of segments with so many floats each.
    struct Memory(Vec<Vec<f32>>);

    impl Memory {
        fn of(sizes: &[usize]) -> Self {
            Self(sizes.iter().map(|floats| vec![f32::NAN; *floats]).collect())
        }

        fn on<W: Work>(&mut self, work: W) -> W::Output {
            let arena = Arena::new(self.0.iter_mut().map(Vec::as_mut_slice));
            work.on(&mut Host::default(), arena).expect("the host does not fail and the memory suffices")
        }
    }

    fn fill(trainer: &mut Trainer, memory: &mut Memory) {
        while memory.on(trainer.fill()) == Filling::Begun {}
    }

    const MIB: usize = (1 << 20) / 4;

    /// The mean losses of windows of 20 steps, the share of the tests named rightly, and the fingerprint.
    fn run(trainer: &mut Trainer, memory: &mut Memory, windows: usize) -> (Vec<f64>, f64, u64) {
        memory.on(trainer.prepare());
        fill(trainer, memory);
        let losses = (0..windows).map(|_| memory.on(trainer.train(20))).collect();
        (losses, memory.on(trainer.test()), memory.on(trainer.fingerprint()))
    }

    #[test]
    fn the_loss_falls_and_unseen_digits_are_named() {
        let mut memory = Memory::of(&[8 * MIB]);
        let (losses, accuracy, _) = run(&mut Trainer::new(1), &mut memory, 15);
        assert!(losses[0] > 1.0 && losses[14] < 0.35, "{losses:?}");
        assert!(accuracy > 0.9, "{accuracy}");
    }

    #[test]
    fn a_seed_and_its_memory_decide_every_bit() {
        let once = run(&mut Trainer::new(7), &mut Memory::of(&[4 * MIB]), 3);
        let again = run(&mut Trainer::new(7), &mut Memory::of(&[4 * MIB]), 3);
        let other = run(&mut Trainer::new(8), &mut Memory::of(&[4 * MIB]), 3);
        let larger = run(&mut Trainer::new(7), &mut Memory::of(&[8 * MIB]), 3);
        assert_eq!(once, again);
        assert_ne!(once.2, other.2);
        assert_ne!(once.2, larger.2, "more memory is more data");
    }

    #[test]
    fn the_same_data_in_two_segments_gives_the_same_bits() {
        let trainer = || Trainer::new(7).with_batches_at_most(90);
        let (mut one, mut two) = (Memory::of(&[8 * MIB]), Memory::of(&[2 * MIB, 3 * MIB]));
        let (mut whole, mut split) = (trainer(), trainer());
        assert_eq!(run(&mut whole, &mut one, 3), run(&mut split, &mut two, 3));
        assert_eq!((whole.samples(), split.samples()), (90 * 128, 90 * 128));
    }

    #[test]
    fn a_data_set_that_grows_keeps_what_it_has() {
        let (mut grown, mut whole) = (Trainer::new(7), Trainer::new(7));
        let (mut memory, mut other) = (Memory::of(&[2 * MIB]), Memory::of(&[2 * MIB, 2 * MIB]));
        run(&mut grown, &mut memory, 0);
        let before = grown.samples();
        let written = memory.0[0].iter().rposition(|value| !value.is_nan()).expect("it is filled");
        let class = std::mem::replace(&mut memory.0[0][written], 77.0);
        memory.0.push(vec![f32::NAN; 2 * MIB]);
        fill(&mut grown, &mut memory);
        assert_eq!(grown.samples(), before + 63 * 128, "63 batches fit 2 MiB");
        assert_eq!(memory.0[0][written], 77.0, "what is filled is not written again");
        memory.0[0][written] = class;
        run(&mut whole, &mut other, 0);
        assert_eq!(memory.on(grown.train(20)), other.on(whole.train(20)));

        memory.0.pop();
        fill(&mut grown, &mut memory);
        assert_eq!(grown.samples(), before, "a data set shrinks with its memory");
        memory.on(grown.train(20));
    }

    #[test]
    fn a_data_set_filled_in_pieces_is_the_same() {
        let (mut memory, mut trainer) = (Memory::of(&[2 * MIB, 36 * MIB]), Trainer::new(3));
        memory.on(trainer.prepare());
        assert_eq!(memory.on(trainer.fill()), Filling::Begun);
        assert_eq!(memory.on(trainer.fill()), Filling::Done);
        let samples = usize::try_from(trainer.samples()).expect("a few");
        assert!(samples > 1024 * 128);

        let mut whole = vec![f32::NAN; samples * (PIXELS + 1)];
        let (digits, which) = (Digits::training(), Augmentation { seed: 3, first: 0, batch: 128 });
        let written = Host::default().augment(&mut whole, &digits.images, &digits.classes, which);
        written.expect("the host does not fail");
        let arena = Arena::new(memory.0.iter_mut().map(Vec::as_mut_slice));
        let table = trainer.lay_out(arena).expect("it was laid out before");
        let each = trainer.batch_floats();
        let filled = table.shelves.iter().flat_map(|shelf| &shelf[..shelf.len() / each * each]);
        assert!(filled.eq(&whole));
    }

    #[test]
    fn too_little_memory_says_what_is_missing() {
        let mut memory = Memory::of(&[MIB / 4]);
        let arena = Arena::new(memory.0.iter_mut().map(Vec::as_mut_slice));
        let error = Trainer::new(1).prepare().on(&mut Host::default(), arena).expect_err("256 KiB do not do");
        assert!(error.to_string().contains("ask for more memory"), "{error}");
    }

    #[test]
    fn samples_are_shifted_and_grained_digits_of_their_class() {
        let mut memory = Memory::of(&[2 * MIB]);
        let mut trainer = Trainer::new(3);
        memory.on(trainer.prepare());
        fill(&mut trainer, &mut memory);
        let arena = Arena::new(memory.0.iter_mut().map(Vec::as_mut_slice));
        let table = trainer.lay_out(arena).expect("it was laid out before");
        let (images, classes) = table.shelves[0][..trainer.batch_floats()].split_at(128 * PIXELS);
        let mut shifts = BTreeSet::new();
        for (image, class) in images.chunks_exact(PIXELS).zip(classes) {
            let shift = shift_of(image, *class);
            shifts.insert(shift.unwrap_or_else(|| panic!("this is no {class}: {image:?}")));
        }
        assert_eq!(shifts.len(), 9, "all shifts occur: {shifts:?}");
    }

    /// By how much some training digit of that class was shifted to become `image`.
    fn shift_of(image: &[f32], class: f32) -> Option<(usize, usize)> {
        let digits = Digits::training();
        let ink = |source: &[f32], x: usize, y: usize| {
            let inside = (1..=SIDE).contains(&x) && (1..=SIDE).contains(&y);
            if inside { source[(y - 1) * SIDE + x - 1] } else { 0.0 }
        };
        for (source, _) in
            digits.images.chunks_exact(PIXELS).zip(&digits.classes).filter(|(_, c)| **c == class)
        {
            for shift in (0..9).map(|n| (n % 3, n / 3)) {
                let near = |n: usize| {
                    let moved = ink(source, n % SIDE + shift.0, n / SIDE + shift.1);
                    (image[n] - moved).abs() <= 0.125
                };
                if (0..PIXELS).all(near) {
                    return Some(shift);
                }
            }
        }
        None
    }
}
