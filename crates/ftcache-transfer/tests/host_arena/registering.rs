//! Memory of the engine's own.

use ftcache_transfer::{HostAccess, RegisterError, Registrations};

use super::pinning::PinningDevice;

#[test]
fn ranges_are_registered_once_and_ended_once() {
    let memory = vec![0_u8; 10_000];
    let at = |offset: usize| memory[offset..].as_ptr();
    let mut device = PinningDevice::default();
    let mut table = Registrations::new();
    let register = |device: &mut PinningDevice, table: &mut Registrations, offset, bytes, part_bytes| {
        // SAFETY: `memory` outlives every registration in here.
        unsafe { table.register(device, at(offset), bytes, HostAccess::ReadOnly, part_bytes) }
    };
    register(&mut device, &mut table, 1000, 2500, 1000).unwrap();
    register(&mut device, &mut table, 3500, 10, 0).unwrap();
    register(&mut device, &mut table, 999, 1, 0).unwrap();
    register(&mut device, &mut table, 2000, 0, 0).unwrap();
    assert_eq!(device.registered.values().copied().collect::<Vec<_>>(), [1, 1000, 1000, 500, 10]);
    assert_eq!(device.accesses, [HostAccess::ReadOnly; 5]);
    assert_eq!((table.bytes(), table.registration_count()), (2511, 5));
    for (offset, bytes) in [(1000, 2500), (0, 1001), (0, 10_000), (3499, 1), (1500, 100), (3509, 50)] {
        let refused = register(&mut device, &mut table, offset, bytes, 0).unwrap_err();
        let RegisterError::Overlap { base, other_base, .. } = refused else { panic!("{refused}") };
        assert_eq!(base, at(offset).addr());
        assert!([999, 1000, 3500].map(|offset| at(offset).addr()).contains(&other_base));
    }
    let unknown = table.unregister(&mut device, at(2000)).unwrap_err();
    assert_eq!(unknown, RegisterError::Unknown { base: at(2000).addr() });
    table.unregister(&mut device, at(1000)).unwrap();
    assert!(matches!(table.unregister(&mut device, at(1000)), Err(RegisterError::Unknown { .. })));
    assert_eq!(device.registered_bytes(), 11);
    register(&mut device, &mut table, 1000, 2500, 0).unwrap();
    assert!(!table.is_clear());
    table.free(&mut device).unwrap();
    assert!(table.is_clear());
    table.free(&mut device).unwrap();
    device.assert_clear();
}

#[test]
fn a_range_of_which_a_part_is_refused_is_not_registered() {
    let memory = vec![0_u8; 10_000];
    for refused_at in 0..4 {
        let mut device = PinningDevice { refuse_once: Some(refused_at), ..PinningDevice::default() };
        let mut table = Registrations::new();
        // SAFETY: `memory` outlives the registration.
        let refused = unsafe { table.register(&mut device, memory.as_ptr(), 10_000, HostAccess::ReadWrite, 3000) };
        let Err(RegisterError::Refused { wanted_bytes, registered_bytes, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!((wanted_bytes, registered_bytes), ([3000, 3000, 3000, 1000][refused_at], 3000 * refused_at as u64));
        device.assert_clear();
        assert!(table.is_clear());
    }
}

#[test]
fn a_part_that_cannot_be_taken_back_is_told_instead_of_the_refusal() {
    let memory = vec![0_u8; 10_000];
    for fail_end in [0, 1] {
        let (refuse_once, fail_end) = (Some(2), Some(fail_end));
        let mut device = PinningDevice { refuse_once, fail_end, ..PinningDevice::default() };
        let mut table = Registrations::new();
        // SAFETY: `memory` outlives every registration in here.
        let failed = unsafe { table.register(&mut device, memory.as_ptr(), 10_000, HostAccess::ReadWrite, 3000) };
        let error = failed.unwrap_err();
        assert!(matches!(error, RegisterError::Device(_)), "{error}");
        assert!(error.to_string().ends_with(": broken"), "{error}");
        device.assert_clear();
        assert_eq!((table.bytes(), table.registration_count()), (0, 0));
        assert!(!table.is_clear(), "the memory must stay mapped");
    }
}

#[test]
fn a_failure_at_the_end_is_told_and_remembered() {
    let memory = vec![0_u8; 10_000];
    let mut device = PinningDevice { fail_end: Some(1), ..PinningDevice::default() };
    let mut table = Registrations::new();
    // SAFETY: `memory` outlives the registration.
    unsafe { table.register(&mut device, memory.as_ptr(), 10_000, HostAccess::ReadWrite, 3000) }.unwrap();
    assert!(table.free(&mut device).is_err());
    device.assert_clear();
    assert!(!table.is_clear(), "the memory must stay mapped");
    table.free(&mut device).unwrap();
}
