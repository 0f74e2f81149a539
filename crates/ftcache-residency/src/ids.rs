//! Routes in the form that an engine has them: integers of any width, rows with gaps between them, and its own value
//! for a route that is not for this device.

use ftcache_policy::{ExpertId, LayerId};

use crate::{Cache, EnsureError};

/// The ids of `row_count` rows of `row_len`, which begin `stride` elements apart: a view of an arg-sort's result has
/// rows of top-k ids, and a stride of the expert count.
///
/// # Panics
///
/// If `ids` has fewer elements than that takes.
pub fn strided<T: Copy>(ids: &[T], row_count: usize, row_len: usize, stride: usize) -> impl Iterator<Item = T> + '_ {
    let needed = if row_count == 0 { 0 } else { (row_count - 1).saturating_mul(stride).saturating_add(row_len) };
    assert!(
        ids.len() >= needed,
        "{row_count} rows of {row_len} ids, {stride} apart, take {needed}; {} given",
        ids.len()
    );
    (0..row_count).flat_map(move |row| ids[row * stride..row * stride + row_len].iter().copied())
}

impl Cache {
    /// Reads the routes of a step of `layer`. An id equal to `absent` is a route that is not for this device.
    ///
    /// # Errors
    ///
    /// An unknown layer, or one without slots; an id that is neither an expert nor `absent`, with its value and
    /// position; an `absent` that is an expert's id.
    pub fn read_ids(
        &self,
        layer: LayerId,
        ids: impl IntoIterator<Item = i64>,
        absent: Option<i64>,
        routes: &mut Vec<ExpertId>,
    ) -> Result<(), EnsureError> {
        self.pool_of(layer)?;
        let expert_count = self.expert_count();
        if let Some(id) = absent.filter(|id| (0..i64::from(expert_count)).contains(id)) {
            return Err(EnsureError::AbsentId { id, expert_count });
        }
        routes.clear();
        for (route, id) in ids.into_iter().enumerate() {
            if Some(id) == absent {
                routes.push(ExpertId::ABSENT);
                continue;
            }
            match u32::try_from(id) {
                Ok(expert) if expert < expert_count => routes.push(ExpertId::new(expert)),
                _ => return Err(EnsureError::UnknownId { layer, route, id, expert_count }),
            }
        }
        Ok(())
    }
}
