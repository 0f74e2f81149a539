//! Every error as people read it: the thing and both numbers, in one line.

use super::*;

fn lines<E: std::error::Error>(errors: impl IntoIterator<Item = E>) -> String {
    let lines: Vec<String> = errors.into_iter().map(|error| error.to_string()).collect();
    assert!(lines.iter().all(|line| !line.contains('\n')));
    lines.join("\n")
}

fn too_wide(given: u32, pinned: u32, withheld: u32) -> EnsureError {
    EnsureError::StepTooWide {
        layer: layer(3),
        pool: PoolId::new(1),
        needed: 33,
        given,
        slot_count: 40,
        pinned,
        withheld,
    }
}

#[test]
fn steps_that_are_not_admitted() {
    let layer = layer(3);
    let texts = lines([
        EnsureError::UnknownLayer { layer, layer_count: 3 },
        EnsureError::NoSlots { layer },
        EnsureError::UnknownExpert { layer, route: 5, expert: expert(64), expert_count: 64 },
        EnsureError::UnknownId { layer, route: 5, id: -7, expert_count: 64 },
        EnsureError::AbsentId { id: 63, expert_count: 64 },
        too_wide(40, 0, 0),
        too_wide(31, 9, 0),
        too_wide(24, 0, 16),
        too_wide(15, 9, 16),
        EnsureError::LastStep { step: u64::MAX - 1 },
        EnsureError::TokenReused { layer, token: 9 },
        EnsureError::AnswerGone { layer, token: 9, expert: expert(5) },
        EnsureError::NothingToAccept { layer },
        EnsureError::NotVerified { layer, route: 2, expert: expert(5) },
    ]);
    insta::assert_snapshot!(texts, @"
    no layer 3: the cache has 3 layers
    layer 3 holds no slots: it decodes elsewhere
    layer 3: route 5 is 64, which is no expert of 0..64
    layer 3: route 5 is -7, which is no expert of 0..64
    the id of an absent route is 63, an expert of 0..64
    layer 3 routes to 33 distinct experts; pool 1 has 40 slots
    layer 3 routes to 33 distinct experts; pool 1 has 40 slots, 31 without 9 that are pinned for others or in flight
    layer 3 routes to 33 distinct experts; pool 1 has 40 slots, 24 without the 16 under staging buffers
    layer 3 routes to 33 distinct experts; pool 1 has 40 slots, 15 without 9 that are pinned for others or in flight and the 16 under staging buffers
    step 18446744073709551614 was the last that can be counted: make a new cache
    layer 3: token 9 stands for other routes or another kind of step
    layer 3: expert 5 has lost its slot since the step of token 9
    layer 3 has no verify step to accept
    layer 3: accepted route 2 is 5, which the verify step did not route to
    ");
}

#[test]
fn pools_that_are_not_made() {
    let too_many = PinError::TooMany { pool: PoolId::new(1), pinned: 9, unpinned: 8, slot_count: 16 };
    let texts = lines([
        PoolsError::UnknownPool { layer: layer(1), pool: PoolId::new(2), pool_count: 2 },
        PoolsError::TooMany { experts: 8_589_934_590, slots: 1 },
        PoolsError::OtherModel { had: (48, 128), given: (47, 256) },
        PoolsError::Pinned(too_many),
        PoolsError::ChunkOpen,
    ]);
    insta::assert_snapshot!(texts, @"
    layer 1 is in pool 2 of 2 pools
    8589934590 experts and 1 slots; ids count 4294967280 of each
    a cache of 48 layers of 128 experts cannot become one of 47 layers of 256
    pool 1 has 16 slots; 9 pinned experts and 8 slots for others need 17
    a prefill chunk is open
    ");
}

#[test]
fn experts_that_are_not_pinned() {
    let texts = lines([
        PinError::Unknown(EnsureError::NoSlots { layer: layer(3) }),
        PinError::TooMany { pool: PoolId::new(1), pinned: 9, unpinned: 8, slot_count: 16 },
    ]);
    insta::assert_snapshot!(texts, @"
    layer 3 holds no slots: it decodes elsewhere
    pool 1 has 16 slots; 9 pinned experts and 8 slots for others need 17
    ");
}

#[test]
fn calls_out_of_the_order_of_a_chunk() {
    let (layer, pool) = (layer(3), PoolId::new(1));
    let other = |stable_from, slot_count| StageError::OtherPools { pool, stable_from, slot_count };
    let texts = lines([
        StageError::Layer(EnsureError::UnknownLayer { layer, layer_count: 3 }),
        StageError::NoStaging,
        other(Some(256), Some(200)),
        other(None, Some(200)),
        other(Some(0), None),
        StageError::ChunkOpen,
        StageError::NoChunk,
        StageError::NoOverlap,
        StageError::NotReleased { buffer: 1, layer },
        StageError::StagedBefore { layer },
        StageError::NotStaged { layer },
        StageError::InUse { layer },
        StageError::NotWaitedFor { layer },
    ]);
    insta::assert_snapshot!(texts, @"
    no layer 3: the cache has 3 layers
    the cache has no staging buffers
    the staging buffers are not laid out for these pools: they cover 256 slots of pool 1, which has 200
    the staging buffers are not laid out for these pools: they know no pool 1
    the staging buffers are not laid out for these pools: the cache has no pool 1
    a prefill chunk is open
    no prefill chunk is open
    there is one staging buffer: layers are materialized one at a time
    staging buffer 1 holds layer 3, which has not been released
    layer 3 has been staged in this chunk
    layer 3 is in no staging buffer
    layer 3 is in use
    layer 3 is staged and has not been waited for
    ");
}

#[test]
fn residents_that_are_not_brought_back() {
    let expert = FlatExpertId::new(700);
    let texts = lines([
        SnapshotError::Magic,
        SnapshotError::Version { given: 2, known: 1 },
        SnapshotError::Length { needed: 48, given: 47 },
        SnapshotError::Checksum,
        SnapshotError::Fingerprint { given: 0xab, wanted: 0x0123_4567_89ab_cdef },
        SnapshotError::OtherModel { given: (48, 128), wanted: (48, 256) },
        SnapshotError::UnknownExpert { index: 3, expert, expert_count: 512 },
        SnapshotError::NamedTwice { index: 3, expert },
        SnapshotError::NotEmpty { resident_count: 21 },
        SnapshotError::ChunkOpen,
        SnapshotError::LastStep(EnsureError::LastStep { step: 5 }),
    ]);
    insta::assert_snapshot!(texts, @"
    not a list of residents: it does not begin with FTCR
    residents of version 2; version 1 is known
    residents of 48 bytes; 47 were given
    the residents are damaged: their checksum is another
    residents of the model with fingerprint 00000000000000ab; this model's is 0123456789abcdef
    residents of 48 layers of 128 experts; the cache has 48 layers of 256
    resident 3 is 700, which is no expert of 0..512
    resident 3 is 700, which is named before
    the cache holds 21 experts; it must be empty
    a prefill chunk is open
    step 5 was the last that can be counted: make a new cache
    ");
}

#[test]
fn plans_as_they_are_read() {
    let misses = Misses::Hybrid { fetch: Fetch { rule: FetchRule::UpTo(1), most: None }, order: FetchOrder::LowestId };
    let mut cache = one_pool(1, 16, 2);
    decode(&mut cache, 0, &[3, 1]);
    let plan = commit(&mut cache, Step { misses, ..Step::new(layer(0)) }, &[1, 9, ABSENT, 5, 9]);
    insta::assert_snapshot!(plan.to_string(), @"step 2 pool 0: routes [1, 9, -, 5, 9] -> slots [0, cpu, -, 1, cpu]; copy 5 -> slot 1 (was 3, last step 1)");
}
