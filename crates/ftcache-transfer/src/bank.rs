//! The rows on the host: for each layer and bank, where they begin and how far apart they lie.
//!
//! *Unsafe*, relying on one promise: whoever attaches memory that it owns itself keeps the rows readable and unchanged
//! until they are attached anew or the banks are dropped, and until every stream that copies from them has been
//! synchronised.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use ftcache_policy::{BankId, LayerId, Model};

use crate::{BankError, HostSpan};

/// Whatever keeps rows alive: their bytes, or the memory that they lie in.
#[derive(Clone)]
#[expect(dead_code, reason = "held, never looked at")]
struct Owner(Arc<dyn Any + Send + Sync>);

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owner")
    }
}

/// One bank of one layer on the host: a row for each expert.
#[derive(Debug, Clone)]
pub struct HostRows {
    base: *const u8,
    bytes: u64,
    /// Zero means rows without gaps.
    stride: u64,
    /// Keeps the bytes alive; `None` where the caller owns them.
    _owner: Option<Owner>,
}

// SAFETY: the pointer is only read through, and the bytes it reaches are shared and unchanging: owned ones lie in an
// `Arc<[u8]>`, shared and borrowed ones are by the promises of `HostRows::shared` and `HostRows::borrowed`.
unsafe impl Send for HostRows {}
// SAFETY: as above; no method changes anything behind the pointer.
unsafe impl Sync for HostRows {}

impl HostRows {
    /// Rows that the banks keep alive, `stride` bytes apart; a stride of zero means without gaps.
    pub fn owned(bytes: Arc<[u8]>, stride: u64) -> Self {
        Self { base: bytes.as_ptr(), bytes: bytes.len() as u64, stride, _owner: Some(Owner(Arc::new(bytes))) }
    }

    /// Rows that lie in something of which they own a share.
    ///
    /// # Safety
    ///
    /// `bytes` bytes from `base` on stay readable and unchanged as long as `owner` has a share left.
    pub(crate) unsafe fn shared<T: Send + Sync + 'static>(
        owner: Arc<T>,
        base: *const u8,
        bytes: u64,
        stride: u64,
    ) -> Self {
        Self { base, bytes, stride, _owner: Some(Owner(owner)) }
    }

    /// Rows in memory that the caller owns: a mapped model file, a block that the engine pinned.
    ///
    /// # Safety
    ///
    /// `bytes` bytes from `base` on stay readable and unchanged as long as these rows are attached, and until
    /// every stream that copies from them has been synchronised.
    pub unsafe fn borrowed(base: *const u8, bytes: u64, stride: u64) -> Self {
        Self { base, bytes, stride, _owner: None }
    }

    /// The first row.
    pub fn base(&self) -> *const u8 {
        self.base
    }

    /// Bytes from there on.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Memory of the caller's, to be pinned where it lies.
#[derive(Debug, Clone, Copy)]
pub struct HostMemory {
    pub(crate) base: *const u8,
    pub(crate) bytes: u64,
}

impl HostMemory {
    /// Memory from an address on.
    ///
    /// # Safety
    ///
    /// It stays mapped until it is unregistered, or whoever registers it is gone; and as long as rows in it
    /// are attached.
    pub const unsafe fn borrowed(base: *const u8, bytes: u64) -> Self {
        Self { base, bytes }
    }
}

/// Rows that were checked against their layer.
#[derive(Debug, Clone)]
struct Bank {
    rows: HostRows,
    /// At least the row's width.
    stride: u64,
    /// Whether the device reads them where they lie.
    direct: bool,
}

/// The rows of every layer and bank, attached one by one in any order.
#[derive(Debug, Clone)]
pub(crate) struct Banks {
    expert_count: u32,
    /// `row_bytes[layer][bank]`; zero where nothing is to be attached.
    row_bytes: Vec<Box<[u64]>>,
    /// `banks[layer][bank]`.
    banks: Vec<Vec<Option<Bank>>>,
}

impl Banks {
    /// No rows yet.
    pub(crate) fn new(model: &Model) -> Self {
        let row_bytes = model.layers().iter().map(|layer| layer.row_bytes().into()).collect();
        let banks = vec![vec![None; model.bank_count()]; model.layer_count()];
        Self { expert_count: model.expert_count(), row_bytes, banks }
    }

    /// Whether rows can serve a bank of a layer. Returns their stride.
    ///
    /// # Errors
    ///
    /// An unknown layer or bank, a bank that the layer does not read, a stride below the row's width, or fewer bytes
    /// than the experts' rows take.
    pub(crate) fn check(&self, layer: LayerId, bank: BankId, rows: &HostRows) -> Result<u64, BankError> {
        self.check_bytes(layer, bank, rows.bytes, rows.stride)
    }

    /// The same for so many bytes of rows, `stride` bytes apart, wherever they lie.
    pub(crate) fn check_bytes(&self, layer: LayerId, bank: BankId, bytes: u64, stride: u64) -> Result<u64, BankError> {
        let layer_count = self.banks.len();
        let banks = self.banks.get(layer.index()).ok_or(BankError::UnknownLayer { layer, layer_count })?;
        let bank_count = banks.len();
        if bank.index() >= bank_count {
            return Err(BankError::UnknownBank { bank, bank_count });
        }
        let row_bytes = self.row_bytes[layer.index()][bank.index()];
        if row_bytes == 0 {
            return Err(BankError::Unread { layer, bank });
        }
        let stride = if stride == 0 { row_bytes } else { stride };
        if stride < row_bytes {
            return Err(BankError::Stride { layer, bank, stride, row_bytes });
        }
        let needed = u128::from(self.expert_count - 1) * u128::from(stride) + u128::from(row_bytes);
        if needed > u128::from(bytes) {
            let (expert_count, given) = (self.expert_count, bytes);
            return Err(BankError::TooShort { layer, bank, expert_count, row_bytes, stride, needed, given });
        }
        Ok(stride)
    }

    /// Attaches the rows of one bank of a layer, in place of those it had. `direct` if the device reads them where they
    /// lie.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check). What was attached before stays.
    pub(crate) fn attach(
        &mut self,
        layer: LayerId,
        bank: BankId,
        rows: HostRows,
        direct: bool,
    ) -> Result<(), BankError> {
        let stride = self.check(layer, bank, &rows)?;
        self.banks[layer.index()][bank.index()] = Some(Bank { rows, stride, direct });
        Ok(())
    }

    /// Takes a bank's rows from it, if it has any.
    pub(crate) fn detach(&mut self, layer: LayerId, bank: BankId) {
        self.banks[layer.index()][bank.index()] = None;
    }

    /// Whether the device reads a bank of a layer where it lies; `None` if it has no rows.
    pub(crate) fn is_direct(&self, layer: LayerId, bank: BankId) -> Option<bool> {
        self.banks.get(layer.index())?.get(bank.index())?.as_ref().map(|bank| bank.direct)
    }

    /// Whether a layer has rows in every bank it reads.
    ///
    /// # Errors
    ///
    /// An unknown layer, or the first bank that is missing.
    pub(crate) fn check_layer(&self, layer: LayerId) -> Result<(), BankError> {
        let layer_count = self.banks.len();
        if layer.index() >= layer_count {
            return Err(BankError::UnknownLayer { layer, layer_count });
        }
        let missing = |(bank, row_bytes): (usize, &u64)| *row_bytes > 0 && self.banks[layer.index()][bank].is_none();
        match self.row_bytes[layer.index()].iter().enumerate().position(missing) {
            Some(bank) => Err(BankError::NotAttached { layer, bank: BankId::from_index(bank) }),
            None => Ok(()),
        }
    }

    /// The rows of a bank from `row` on, and whether the device reads them where they lie; `None` if they are not
    /// attached.
    ///
    /// # Panics
    ///
    /// If there is no such layer, bank or row.
    pub(crate) fn rows(&self, layer: LayerId, bank: BankId, row: u32) -> Option<(HostSpan, bool)> {
        assert!(row < self.expert_count, "row {row} of {}", self.expert_count);
        let bank = self.banks[layer.index()][bank.index()].as_ref()?;
        // The offset is inside the rows' bytes, which `attach` checked.
        let base = bank.rows.base.wrapping_add((u64::from(row) * bank.stride) as usize);
        Some((HostSpan { base, stride: bank.stride }, bank.direct))
    }
}
