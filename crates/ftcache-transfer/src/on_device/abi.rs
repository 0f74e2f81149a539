//! `kernels/abi.h` once more: what crosses to kernels, under the same names. What each field means stands there.
//!
//! A test compares every size, offset and number with what the compiler of the kernels makes of them.

#![allow(dead_code, reason = "both sides know all of it, and each uses its part")]

use bytemuck::{Pod, Zeroable};

/// Makes numbers and types, and for the test the list of them: each number, each size, and where each field lies.
macro_rules! shared {
    (
        numbers { $($number:ident: $of:ty = $value:expr;)* }
        structs { $($name:ident { $($field:ident: $kind:ty,)* })* }
    ) => {
        $(pub(crate) const $number: $of = $value;)*

        $(
            #[repr(C)]
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
            pub(crate) struct $name {
                $(pub(crate) $field: $kind,)*
            }
        )*

        #[cfg(test)]
        fn shared() -> Vec<(String, u64)> {
            let mut list = Vec::new();
            $(list.push((stringify!($number).to_owned(), u64::from($number)));)*
            $(
                list.push((stringify!($name).to_owned(), size_of::<$name>() as u64));
                $(list.push((
                    concat!(stringify!($name), ".", stringify!($field)).to_owned(),
                    std::mem::offset_of!($name, $field) as u64,
                ));)*
            )*
            list
        }
    };
}

shared! {
    numbers {
        PLACE_LIMIT: u32 = 0xFFFF_FFF0;
        ABSENT_FIRST: u32 = 0xFFFF_FFF8;
        ABSENCE_COUNT: u32 = 6;

        // Absence
        NEVER_ROUTED: u32 = 0;
        EVICTED: u32 = 1;
        STAGED: u32 = 2;
        FREED: u32 = 3;
        ON_CPU: u32 = 4;
        IN_FLIGHT: u32 = 5;

        NOBODY: u32 = 0xFFFF_FFFF;
        COLD: u64 = 1;
        LAST_STEP: u64 = 0xFFFF_FFFF_FFFF_FFFE;
        WITH_HOST: u64 = 0xFFFF_FFFF_FFFF_FFFF;

        SHARED_EXPERTS: u32 = 1024;
        WORKSPACE_BYTES: u32 = 28;

        HALVES: u32 = 6;
        COMPONENTS: u32 = 7;
        RING_STEPS: u32 = 8;
        RING_WIDTH: u32 = 16;

        // Phase
        DECODE: u32 = 0;
        VERIFY: u32 = 1;
        PREFILL: u32 = 2;
        PHASE_COUNT: u32 = 3;

        // Counter
        STEPS: u32 = 0;
        ROUTES: u32 = 1;
        HIT_ROUTES: u32 = 2;
        DISTINCT: u32 = 3;
        MISSES: u32 = 4;
        FETCHED: u32 = 5;
        EVICTIONS: u32 = 6;
        COLD_MISSES: u32 = 7;
        CAPACITY_MISSES: u32 = 8;
        STAGING_MISSES: u32 = 9;
        FREED_MISSES: u32 = 10;
        CPU_MISSES: u32 = 11;
        REFUSED: u32 = 12;
        COUNTER_COUNT: u32 = 13;

        // FaultCode
        NO_FAULT: u32 = 0;
        UNKNOWN_EXPERT: u32 = 1;
        STEP_TOO_WIDE: u32 = 2;
        STALE_GENERATION: u32 = 3;
        HOST_MODE: u32 = 4;
        LAST_STEP_REACHED: u32 = 5;
        WORD_TIMEOUT: u32 = 6;
        NO_CHUNK: u32 = 7;

        // FetchRuleKind
        UP_TO: u32 = 0;
        MIN_WAIT: u32 = 1;
        PREFER_FETCH: u32 = 2;
        CARRY: u32 = 3;

        // FetchOrderKind
        BY_RECENCY: u32 = 0;
        LOWEST_ID: u32 = 1;

        ZERO_SPANS_MAX: u32 = 32;
    }

    // An address is a `u64`.
    structs {
        Fault {
            code: u32,
            layer: u32,
            count: u64,
            step: u64,
            position: u64,
            value: i64,
            needed: u64,
            given: u64,
            told: u64,
        }

        Header {
            generation: u64,
            step: u64,
            fault: u64,
            reserved: u64,
        }

        PoolState {
            pinned_count: u32,
            marked_count: u32,
            withheld: u32,
            reserved: u32,
        }

        Entry {
            target: u32,
            source: u32,
        }

        PlanHead {
            copy_count: u32,
            distinct: u32,
            misses: u32,
            left: u32,
            step: u64,
            reserved: u64,
        }

        Tables {
            header: u64,
            place: u64,
            active: u64,
            routed: u64,
            marked: u64,
            carried: u64,
            stats: u64,
            plans: u64,
            copies: u64,
            stamp: u64,
            owner: u64,
            pinned: u64,
            pools: u64,
            layer_count: u32,
            expert_count: u32,
            slot_count: u32,
            pool_count: u32,
        }

        Scores {
            weights: u64,
            turns: u64,
            counts: u64,
            totals: u64,
            gains: u64,
            latest: u64,
            latest_widths: u64,
            ring_experts: u64,
            ring_widths: u64,
            ring_next: u64,
            followed: u64,
            keys: u64,
            log_halves: [u32; HALVES as usize],
            half_count: u32,
            rule: u32,
            learns: u32,
            looks_at_distance: u32,
        }

        PoolRange {
            pool: u32,
            first: u32,
            slot_count: u32,
            reserved: u32,
        }

        Routes {
            base: u64,
            row_count: u64,
            row_stride: u64,
            per_row: u32,
            id_bytes: u32,
            absent: i64,
            has_absent: u32,
            reserved: u32,
        }

        Answers {
            base: u64,
            row_stride: u64,
            cpu: i64,
            absent: i64,
            map: u64,
        }

        Admission {
            tables: Tables,
            generation: u64,
            pool: PoolRange,
            layer: u32,
            phase: u32,
            routes: Routes,
            answers: Answers,
            scratch: u64,
        }

        FetchRule {
            rule: u32,
            order: u32,
            number: u32,
            most: u32,
        }

        Weights {
            source: u64,
            source_stride: u64,
            device: u64,
            device_stride: u64,
            cpu: u64,
            cpu_stride: u64,
            bytes: u32,
            reserved: u32,
        }

        HybridAdmission {
            admission: Admission,
            fetch: FetchRule,
            cpu_ids: u64,
            cpu_ids_stride: u64,
            cpu_none: i64,
            weights: Weights,
        }

        ScoredAdmission {
            admission: Admission,
            scores: Scores,
        }

        ScoredHybridAdmission {
            hybrid: HybridAdmission,
            scores: Scores,
        }

        BankRows {
            source: u64,
            source_stride: u64,
            target: u64,
            target_stride: u64,
            row_bytes: u64,
            source_rows: u32,
            target_rows: u32,
        }

        Gather {
            header: u64,
            generation: u64,
            entry_count: u64,
            entries: u64,
            banks: u64,
            bank_count: u32,
            entry_max: u32,
            layer: u32,
            reserved: u32,
        }

        Await {
            tables: Tables,
            generation: u64,
            pool: PoolRange,
            layer: u32,
            word_value: u32,
            word: u64,
            patience: u64,
        }

        Guard {
            pool: u32,
            withheld: u32,
        }

        CompactHits {
            tables: Tables,
            generation: u64,
            guard: Guard,
            layer: u32,
            reserved: u32,
            hit_count: u64,
            hits: u64,
            miss_count: u64,
            misses: u64,
        }

        StageBank {
            host: u64,
            host_stride: u64,
            slots: u64,
            slot_stride: u64,
            target: u64,
            target_stride: u64,
            row_bytes: u64,
            slot_count: u32,
            whole: u32,
        }

        Materialize {
            header: u64,
            generation: u64,
            pools: u64,
            guard: Guard,
            place: u64,
            banks: u64,
            expert_count: u32,
            bank_count: u32,
            layer: u32,
            reserved: u32,
        }

        Invalidate {
            tables: Tables,
            generation: u64,
            pool: PoolRange,
            from: u32,
            count: u32,
            absence: u32,
            withheld: u32,
        }

        Reset {
            tables: Tables,
            generation: u64,
        }

        ZeroSpan {
            base: u64,
            stride: u64,
            row_bytes: u64,
            row_count: u64,
        }

        Zero {
            spans: [ZeroSpan; ZERO_SPANS_MAX as usize],
            span_count: u32,
            layer: u32,
            header: u64,
            generation: u64,
            pools: u64,
            guard: Guard,
        }

        Reading {
            begun: u64,
            ended: u64,
            generation: u64,
            step: u64,
            digest: u64,
            resident_count: u64,
        }

        Statistics {
            tables: Tables,
            generation: u64,
            reading: u64,
            stats: u64,
            scores: Scores,
        }
    }
}

/// A kernel of `kernels/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Makes a step's experts resident, all of them.
    Admit,
    /// Makes some of a step's experts resident and leaves the others to the CPU.
    AdmitHybrid,
    /// As `Admit`, under a rule with scores.
    AdmitScored,
    /// As `AdmitHybrid`, under a rule with scores.
    AdmitHybridScored,
    /// Waits for a word of the host's before rows are brought, or forgets them.
    Await,
    /// Brings rows from pinned host memory.
    GatherRows,
    /// Brings rows from slots.
    GatherSlots,
    /// Lists a layer's hits and misses.
    CompactHits,
    /// Frees slots.
    Invalidate,
    /// Brings every row of a layer into one piece.
    Materialize,
    /// Writes zeros over rows.
    Zero,
    /// Frees every slot.
    Reset,
    /// Writes down what can be read of the residency.
    Statistics,
}

impl Kernel {
    /// All of them, each at its own number.
    pub const ALL: [Self; 13] = [
        Self::Admit,
        Self::AdmitHybrid,
        Self::AdmitScored,
        Self::AdmitHybridScored,
        Self::Await,
        Self::GatherRows,
        Self::GatherSlots,
        Self::CompactHits,
        Self::Invalidate,
        Self::Materialize,
        Self::Zero,
        Self::Reset,
        Self::Statistics,
    ];

    /// What errors call it.
    pub(crate) const fn operation(self) -> &'static str {
        match self {
            Self::Admit => "kernel ftcache_admit",
            Self::AdmitHybrid => "kernel ftcache_admit_hybrid",
            Self::AdmitScored => "kernel ftcache_admit_scored",
            Self::AdmitHybridScored => "kernel ftcache_admit_hybrid_scored",
            Self::Await => "kernel ftcache_await",
            Self::GatherRows => "kernel ftcache_gather_rows",
            Self::GatherSlots => "kernel ftcache_gather_slots",
            Self::CompactHits => "kernel ftcache_compact_hits",
            Self::Invalidate => "kernel ftcache_invalidate",
            Self::Materialize => "kernel ftcache_materialize",
            Self::Zero => "kernel ftcache_zero",
            Self::Reset => "kernel ftcache_reset",
            Self::Statistics => "kernel ftcache_statistics",
        }
    }

    /// Its name in an image.
    pub const fn symbol(self) -> &'static str {
        self.operation().split_at("kernel ".len()).1
    }

    /// Bytes of its arguments.
    pub const fn argument_bytes(self) -> usize {
        match self {
            Self::Admit => size_of::<Admission>(),
            Self::AdmitHybrid => size_of::<HybridAdmission>(),
            Self::AdmitScored => size_of::<ScoredAdmission>(),
            Self::AdmitHybridScored => size_of::<ScoredHybridAdmission>(),
            Self::Await => size_of::<Await>(),
            Self::GatherRows | Self::GatherSlots => size_of::<Gather>(),
            Self::CompactHits => size_of::<CompactHits>(),
            Self::Invalidate => size_of::<Invalidate>(),
            Self::Materialize => size_of::<Materialize>(),
            Self::Zero => size_of::<Zero>(),
            Self::Reset => size_of::<Reset>(),
            Self::Statistics => size_of::<Statistics>(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ftcache_cuda_emu::client::Emulator;

    use super::{Kernel, shared};

    #[test]
    fn host_and_kernels_have_the_same_numbers_sizes_and_offsets() {
        let (host, kernels) = (shared(), Emulator::open().abi());
        let by_name = |list: &[(String, u64)]| list.iter().cloned().collect::<BTreeMap<_, _>>();
        let (ours, theirs) = (by_name(&host), by_name(&kernels));
        assert_eq!((host.len(), kernels.len()), (ours.len(), theirs.len()), "a name stands for one thing");
        let names = ours.keys().chain(theirs.keys());
        let apart = names.filter(|&name| ours.get(name) != theirs.get(name));
        let apart: Vec<_> = apart.map(|name| (name, ours.get(name), theirs.get(name))).collect();
        assert!(apart.is_empty(), "name, host, kernels: {apart:?}");
        assert!(ours.len() > 200, "{}", ours.len());
    }

    #[test]
    fn every_kernel_stands_at_its_number_and_has_a_name_of_its_own() {
        let mut symbols = std::collections::BTreeSet::new();
        for (at, kernel) in Kernel::ALL.into_iter().enumerate() {
            assert_eq!(kernel as usize, at);
            assert!(symbols.insert(kernel.symbol()));
            // What every device takes as the arguments of one launch.
            assert!(kernel.argument_bytes() <= 4096, "{kernel:?}");
        }
    }
}
