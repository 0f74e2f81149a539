//! Residents kept by one run and brought back by another.

use super::*;
use ftcache_residency::Residents;

const FINGERPRINT: u64 = 0x0123_4567_89ab_cdef;

/// Two layers of four experts over four slots: flat 6 with stamp 2, 1 with stamp 3 and 0 with stamp 4.
fn three_residents() -> Cache {
    let mut cache = one_pool(2, 4, 4);
    for (number, of_layer) in [(0, 0), (1, 2), (0, 1), (0, 0)] {
        decode(&mut cache, number, &[of_layer]);
    }
    cache
}

/// Brings residents back, and tells the rows to copy as `layer.expert: pool/slot`.
fn bring_back(cache: &mut Cache, residents: &Residents) -> Vec<String> {
    let mut placements = Vec::new();
    cache.bring_back(residents, FINGERPRINT, &mut placements).unwrap().commit();
    cache.check().unwrap();
    placements.iter().map(|row| format!("{}.{}: {}/{}", row.layer, row.row, row.pool, row.slot)).collect()
}

fn refused(cache: &mut Cache, residents: &Residents, fingerprint: u64) -> SnapshotError {
    let before = format!("{cache:?}");
    let mut placements = Vec::new();
    let error = cache.bring_back(residents, fingerprint, &mut placements).unwrap_err();
    assert_eq!((format!("{cache:?}"), placements), (before, vec![]));
    error
}

#[test]
fn the_order_of_use_goes_on() {
    let residents = three_residents().residents(FINGERPRINT);
    assert_eq!((residents.experts(), residents.fingerprint()), (&flat_ids(&[6, 1, 0])[..], FINGERPRINT));
    let mut cache = one_pool(2, 4, 4);
    assert_eq!(bring_back(&mut cache, &residents), ["1.2: 0/0", "0.1: 0/1", "0.0: 0/2"]);
    assert_eq!((cache.step(), stamps(&cache, POOL)), (3, vec![1, 2, 3, 0]));
    assert_eq!(cache.layer_stats(layer(0)), Stats::default(), "it is no step of a layer");
    assert_eq!(cache.routed(layer(0), expert(0)), 0);
    assert_eq!(
        decode(&mut cache, 1, &[0, 1, 3]),
        "step 4 pool 0: routes [0, 1, 3] -> slots [3, 0, 1]; copy 0 -> slot 3; copy 1 -> slot 0 (was 6, last step 1); \
         copy 3 -> slot 1 (was 1, last step 2)"
    );
    assert_eq!(decode(&mut cache, 0, &[0]), "step 5 pool 0: routes [0] -> slots [2]", "the last that was used");
}

#[test]
fn fewer_slots_take_back_those_used_last() {
    let residents = three_residents().residents(FINGERPRINT);
    let mut cache = one_pool(2, 4, 2);
    assert_eq!(bring_back(&mut cache, &residents), ["0.1: 0/0", "0.0: 0/1"]);
    assert_eq!(cache.absence(layer(1), expert(2)), Some(Absence::NeverRouted));
}

#[test]
fn other_pools_take_back_their_layers() {
    let residents = three_residents().residents(FINGERPRINT);
    let mut cache = Cache::with_pools(4, &pools_of([1, 0]), &[3, 1]).unwrap();
    assert_eq!(bring_back(&mut cache, &residents), ["1.2: 0/0", "0.0: 1/0"]);
    let mut cache = Cache::with_pools(4, &[None, Some(POOL)], &[3]).unwrap();
    assert_eq!(bring_back(&mut cache, &residents), ["1.2: 0/0"], "a layer without slots is left out");
}

#[test]
fn experts_of_one_step_and_of_several_pools_go_by_pool_and_slot() {
    let mut cache = Cache::with_pools(4, &pools_of([1, 0]), &[3, 3]).unwrap();
    decode(&mut cache, 0, &[3, 1]);
    decode(&mut cache, 1, &[2, 0]);
    assert_eq!(cache.residents(0).experts(), flat_ids(&[1, 3, 4, 6]));
    let residents = cache.residents(FINGERPRINT);
    let mut next = Cache::with_pools(4, &pools_of([1, 0]), &[3, 3]).unwrap();
    bring_back(&mut next, &residents);
    // Pool 0 serves layer 1, which was used last.
    assert_eq!((stamps(&next, POOL), stamps(&next, PoolId::new(1))), (vec![3, 4, 0], vec![1, 2, 0]));
    assert_eq!(next.residents(FINGERPRINT), residents);
}

/// Over two pools, of which layers 0 and 2 share the first: the order of use goes from one to the other.
#[test]
fn what_is_brought_back_is_exported_as_it_was() {
    let pools = || Cache::with_pools(4, &pools_of([0, 1, 0]), &[3, 2]).unwrap();
    let mut cache = pools();
    for (number, of_layer) in [(1, 3), (2, 1), (0, 2), (1, 0), (0, 0), (2, 1)] {
        decode(&mut cache, number, &[of_layer]);
    }
    let residents = cache.residents(FINGERPRINT);
    assert_eq!(residents.experts(), flat_ids(&[7, 2, 4, 0, 9]), "in the order of use, over both pools");
    let mut next = pools();
    bring_back(&mut next, &residents);
    assert_eq!((next.step(), next.residents(FINGERPRINT)), (5, residents.clone()));
    assert_eq!((stamps(&next, POOL), stamps(&next, PoolId::new(1))), (vec![2, 4, 5], vec![1, 3]));
    let mut third = pools();
    bring_back(&mut third, &Residents::from_bytes(&next.residents(FINGERPRINT).to_bytes()).unwrap());
    assert_eq!(third.residents(FINGERPRINT), residents);
    // The first victim of each pool is what was used least recently in the run before.
    for cache in [&mut cache, &mut next, &mut third] {
        let victims = [commit(cache, layer(0), &[3]), commit(cache, layer(1), &[1])].map(|plan| {
            let victims: Vec<u32> = plan.victims().map(|victim| victim.unwrap().expert.get()).collect();
            victims
        });
        assert_eq!(victims, [[2], [7]]);
    }
}

#[test]
fn residents_that_do_not_fit_are_counted_like_the_others() {
    let residents = three_residents().residents(FINGERPRINT);
    let mut cache = one_pool(2, 4, 1);
    assert_eq!(bring_back(&mut cache, &residents), ["0.0: 0/0"]);
    assert_eq!((cache.step(), stamps(&cache, POOL)), (3, vec![3]));
    let mut cache = Cache::with_pools(4, &[None, Some(POOL)], &[3]).unwrap();
    bring_back(&mut cache, &residents);
    assert_eq!((cache.step(), stamps(&cache, POOL)), (3, vec![1, 0, 0]));
}

#[test]
fn bringing_back_needs_as_many_steps_as_there_are_residents() {
    let last = u64::MAX - 1;
    let residents = three_residents().residents(FINGERPRINT);
    let nobody = one_pool(2, 4, 4).residents(FINGERPRINT);
    let mut cache = one_pool(2, 4, 4);
    for step in [last - 2, last - 1, last] {
        cache.skip_to(step);
        let error = SnapshotError::LastStep(EnsureError::LastStep { step });
        assert_eq!(refused(&mut cache, &residents, FINGERPRINT), error);
    }
    assert_eq!(bring_back(&mut cache, &nobody), Vec::<String>::new(), "nobody needs none");
    let mut cache = one_pool(2, 4, 4);
    cache.skip_to(last - 3);
    assert_eq!(bring_back(&mut cache, &residents).len(), 3);
    assert_eq!((cache.step(), stamps(&cache, POOL)), (last, vec![last - 2, last - 1, last, 0]));
}

#[test]
fn an_expert_pinned_before_it_is_brought_back_is_pinned() {
    let residents = three_residents().residents(FINGERPRINT);
    let mut cache = one_pool(2, 4, 3);
    cache.pin(&[(layer(1), expert(2))], 2).unwrap();
    bring_back(&mut cache, &residents);
    assert_eq!(answer(&commit(&mut cache, layer(0), &[3])), [1], "1.2 in slot 0 is pinned");
}

#[test]
fn an_aborted_warm_start_leaves_every_slot_free() {
    let residents = three_residents().residents(FINGERPRINT);
    let mut cache = one_pool(2, 4, 4);
    let mut placements = Vec::new();
    let ticket = cache.bring_back(&residents, FINGERPRINT, &mut placements).unwrap();
    assert_eq!(ticket.placements().len(), 3);
    ticket.abort();
    cache.check().unwrap();
    assert_eq!((cache.step(), stamps(&cache, POOL)), (3, vec![0; 4]));
    assert_eq!(cache.absence(layer(0), expert(1)), Some(Absence::Freed));
    assert_eq!(cache.absence(layer(0), expert(3)), Some(Absence::NeverRouted));
    drop(cache.bring_back(&residents, FINGERPRINT, &mut placements).unwrap());
    assert_eq!(stamps(&cache, POOL), [0; 4], "a dropped ticket aborts");
    assert_eq!(bring_back(&mut cache, &residents).len(), 3, "and it may be tried again");
}

#[test]
fn residents_come_back_into_an_empty_cache_of_the_same_model() {
    let residents = three_residents().residents(FINGERPRINT);
    let mut other = one_pool(2, 4, 4);
    let error = SnapshotError::Fingerprint { given: FINGERPRINT, wanted: 7 };
    assert_eq!(refused(&mut other, &residents, 7), error);
    let error = SnapshotError::OtherModel { given: (2, 4), wanted: (2, 5) };
    assert_eq!(refused(&mut one_pool(2, 5, 4), &residents, FINGERPRINT), error);
    let error = SnapshotError::OtherModel { given: (2, 4), wanted: (3, 4) };
    assert_eq!(refused(&mut one_pool(3, 4, 4), &residents, FINGERPRINT), error);
    let error = SnapshotError::NotEmpty { resident_count: 3 };
    assert_eq!(refused(&mut three_residents(), &residents, FINGERPRINT), error);
    let mut open = borrowing(2, 4, 8);
    open.begin_chunk().unwrap();
    assert_eq!(refused(&mut open, &residents, FINGERPRINT), SnapshotError::ChunkOpen);
    let mut emptied = three_residents();
    emptied.reset();
    assert_eq!(bring_back(&mut emptied, &residents).len(), 3);
    assert_eq!(emptied.step(), 7);
}

#[test]
fn nobody_is_residents_too() {
    let residents = one_pool(2, 4, 4).residents(FINGERPRINT);
    let residents = Residents::from_bytes(&residents.to_bytes()).unwrap();
    assert_eq!(bring_back(&mut one_pool(2, 4, 4), &residents), Vec::<String>::new());
}

/// The bytes as the format's description has them, built anew.
fn bytes(magic: &[u8; 4], version: u32, layers: u32, experts: u32, residents: &[u32]) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(FINGERPRINT.to_le_bytes());
    for number in [layers, experts, residents.len() as u32] {
        bytes.extend(number.to_le_bytes());
    }
    for number in residents {
        bytes.extend(number.to_le_bytes());
    }
    with_checksum(bytes)
}

/// Ends the bytes with their FNV-1a.
fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    let hash = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325, hash);
    bytes.extend(sum.to_le_bytes());
    bytes
}

#[test]
fn bytes_are_as_described_and_come_back_as_they_were() {
    let residents = three_residents().residents(FINGERPRINT);
    let kept = residents.to_bytes();
    assert_eq!(kept, bytes(b"FTCR", 1, 2, 4, &[6, 1, 0]));
    assert_eq!(kept.len(), 28 + 3 * 4 + 8);
    assert_eq!(Residents::from_bytes(&kept), Ok(residents));
}

#[test]
fn each_damage_is_its_own_error() {
    let read = |bytes: Vec<u8>| Residents::from_bytes(&bytes).unwrap_err();
    let good = bytes(b"FTCR", 1, 2, 4, &[6, 1, 0]);
    assert_eq!(read(bytes(b"FTCS", 1, 2, 4, &[6, 1, 0])), SnapshotError::Magic);
    assert_eq!(read(bytes(b"FTCR", 2, 2, 4, &[6, 1, 0])), SnapshotError::Version { given: 2, known: 1 });
    assert_eq!(read(bytes(b"FTCR", 0, 2, 4, &[])), SnapshotError::Version { given: 0, known: 1 });
    assert_eq!(read([&good[..], &[0]].concat()), SnapshotError::Length { needed: 48, given: 49 });
    for cut in 36..48 {
        assert_eq!(read(good[..cut].to_vec()), SnapshotError::Length { needed: 48, given: cut as u64 });
    }
    for cut in 0..4 {
        assert_eq!(read(good[..cut].to_vec()), SnapshotError::Magic);
    }
    for cut in 4..36 {
        let error = read(good[..cut].to_vec());
        assert!(matches!(error, SnapshotError::Length { given, .. } if given == cut as u64), "{cut} bytes: {error}");
    }
    let unknown =
        |index, number| SnapshotError::UnknownExpert { index, expert: FlatExpertId::new(number), expert_count: 8 };
    assert_eq!(read(bytes(b"FTCR", 1, 2, 4, &[6, 8])), unknown(1, 8));
    assert_eq!(read(bytes(b"FTCR", 1, 2, 4, &[u32::MAX])), unknown(0, u32::MAX));
    let twice = SnapshotError::NamedTwice { index: 2, expert: FlatExpertId::new(6) };
    assert_eq!(read(bytes(b"FTCR", 1, 2, 4, &[6, 1, 6])), twice);
}

#[test]
fn a_flipped_byte_is_found_at_every_position() {
    let good = bytes(b"FTCR", 1, 2, 4, &[6, 1, 0]);
    for place in 0..good.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut damaged = good.clone();
            damaged[place] ^= flip;
            let error = Residents::from_bytes(&damaged).unwrap_err();
            let as_wanted = match place {
                0..4 => error == SnapshotError::Magic,
                4..8 => matches!(error, SnapshotError::Version { known: 1, .. }),
                24..28 => matches!(error, SnapshotError::Length { given: 48, .. }),
                _ => error == SnapshotError::Checksum,
            };
            assert!(as_wanted, "byte {place}: {error}");
        }
    }
}

#[test]
fn numbers_that_claim_more_than_there_is_are_refused_without_asking_for_it() {
    // 4,294,967,295 residents, of 48 bytes.
    let mut claims = bytes(b"FTCR", 1, 2, 4, &[6, 1, 0]);
    claims[24..28].fill(0xff);
    let needed = 36 + 4 * u64::from(u32::MAX);
    assert_eq!(Residents::from_bytes(&claims), Err(SnapshotError::Length { needed, given: 48 }));
    // Layers and experts whose product is beyond 32 bits.
    let huge = bytes(b"FTCR", 1, u32::MAX, u32::MAX, &[5, 5]);
    assert_eq!(Residents::from_bytes(&huge), Err(SnapshotError::NamedTwice { index: 1, expert: FlatExpertId::new(5) }));
    let none = bytes(b"FTCR", 1, 0, 0, &[0]);
    let unknown = SnapshotError::UnknownExpert { index: 0, expert: FlatExpertId::new(0), expert_count: 0 };
    assert_eq!(Residents::from_bytes(&none), Err(unknown));
}
