//! The ids: small integers that must not be mixed up.
//!
//! Each is a `u32` with a name. A bare `u32` crosses only the C border; the checks of `id < count` belong to whoever
//! knows the count.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(u32);

        impl $name {
            /// The id with this number.
            #[inline]
            pub const fn new(id: u32) -> Self {
                Self(id)
            }

            /// The number, as it crosses a border.
            #[inline]
            pub const fn get(self) -> u32 {
                self.0
            }

            /// The number, as it indexes an array.
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }

            /// The id of an array index.
            ///
            /// # Panics
            ///
            /// If the index is over `u32::MAX`: arrays indexed by ids are bounded when a [`Model`](crate::Model) is
            /// made, so this is a fault of ours.
            #[inline]
            pub fn from_index(index: usize) -> Self {
                Self(u32::try_from(index).expect("an id fits in 32 bits"))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// One mixture-of-experts layer, counted over these layers alone (dense layers have no number here).
    LayerId
}
id! {
    /// One expert of a layer, in `0..experts`.
    ExpertId
}
id! {
    /// One expert of the model: `layer * experts + expert`.
    FlatExpertId
}
id! {
    /// One bank: the rows of one role (gate, up, down, scales) over all experts.
    BankId
}
id! {
    /// One pool of slots.
    PoolId
}
id! {
    /// One slot, local to its pool.
    SlotId
}

impl ExpertId {
    /// A route that is not for this device: it takes no slot, and its answer is [`SlotId::ABSENT`].
    ///
    /// No model has this expert, since [`Model`](crate::Model) bounds the flat ids below it.
    pub const ABSENT: Self = Self(u32::MAX);
}

impl SlotId {
    /// The answer to a route that is [`ExpertId::ABSENT`].
    pub const ABSENT: Self = Self(u32::MAX);

    /// The answer to a route that the CPU computes: its expert is in no slot, and was not fetched.
    pub const CPU: Self = Self(u32::MAX - 1);

    /// Slots have lower numbers than this.
    pub const LIMIT: u32 = u32::MAX - 15;

    /// Whether the answer is a slot at all.
    #[inline]
    pub const fn is_slot(self) -> bool {
        self.0 < Self::LIMIT
    }
}
