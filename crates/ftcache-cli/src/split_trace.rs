//! Miss curves of a trace for `plan --split-trace`: read before the model is, and compared with it after.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use ftcache::policy::{Curves, Model, RankView};
use ftcache_trace::{Events, LayerCurves, MissCurve, Shape, Trace};

use crate::Failure;

/// What a pool for each layer would miss on a trace.
pub(crate) struct TraceCurves {
    model_name: String,
    shape: Shape,
    curves: LayerCurves,
}

impl TraceCurves {
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let at = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let file = File::open(path).map_err(|error| at(&error))?;
        let trace = Trace::read(BufReader::new(file)).map_err(|error| at(&error))?;
        let header = trace.header();
        Ok(Self {
            model_name: header.model.clone(),
            shape: header.shape(),
            curves: LayerCurves::lru(&Events::of(&trace)),
        })
    }

    /// The curves of the layers that a rank runs.
    pub(crate) fn of_rank(&self, whole: &Model, view: &RankView) -> Result<Curves, Failure> {
        self.shape.check_model(whole.layer_count(), whole.expert_count())?;
        let experts = self.shape.experts;
        // A curve counts what the other experts of its layer push out too.
        let owned = view.experts();
        if owned.len() != experts as usize {
            return Err(
                format!("--split-trace counts all {experts} experts of a layer; this rank owns {owned:?}").into()
            );
        }
        let layers = view.layers().iter().map(|layer| by_slots(&self.curves.layers()[layer.index()])).collect();
        Ok(Curves::new(self.model_name.as_str(), layers)?)
    }
}

/// The misses from no slot on, as a split takes them.
pub(crate) fn by_slots(curve: &MissCurve) -> Vec<u64> {
    (0..=curve.most_slots()).map(|slots| curve.misses_or_uses(slots)).collect()
}
