//! How settings say that slots are divided: which counts go with which split, and that they are of the model's shape.

use ftcache_core::policy::{Curves, Model, OtherModel, Profile, Settings, Split};

use crate::boundary::{array, flag, text};
use crate::failure::Failure;
use crate::settings::{ftcache_settings, ftcache_split, not_a};

/// # Safety
///
/// The pointers of `given` are as the header says of them.
pub(crate) unsafe fn read_split(
    given: &ftcache_settings,
    model: &Model,
    settings: &mut Settings,
) -> Result<(), Failure> {
    // SAFETY: texts by the caller's word.
    let name = |pointer, name| unsafe { text(pointer, name) };
    settings.model_name = name(given.model_name, "settings->model_name")?.map(str::to_owned);
    if flag(given.refuse_other_model, "settings->refuse_other_model")? {
        settings.other_model = OtherModel::Refuse;
    }
    let uses_of = name(given.use_counts_model, "settings->use_counts_model")?;
    let misses_of = name(given.miss_counts_model, "settings->miss_counts_model")?;
    // SAFETY: as many numbers as the count says, by the caller's word.
    let uses = unsafe { array(given.use_counts, given.use_count_count, "settings->use_counts") }?;
    // SAFETY: as above.
    let misses = unsafe { array(given.miss_counts, given.miss_count_count, "settings->miss_counts") }?;
    let without_effect = |what: String, split: &str| {
        Err(Failure::argument(format!("settings->{what} only if split is FTCACHE_SPLIT_{split}")))
    };
    let is = |split: ftcache_split| given.split == split as u32;
    if !is(ftcache_split::Equal) && !is(ftcache_split::Profile) && !is(ftcache_split::Curve) {
        return Err(not_a("settings->split", given.split, "ftcache_split"));
    }
    if !uses.is_empty() && !is(ftcache_split::Profile) {
        return without_effect(format!("use_counts has {} counts, which count", uses.len()), "PROFILE");
    }
    if !misses.is_empty() && !is(ftcache_split::Curve) {
        return without_effect(format!("miss_counts has {} counts, which count", misses.len()), "CURVE");
    }
    if let Some(name) = misses_of.filter(|_| !is(ftcache_split::Curve)) {
        return without_effect(format!("miss_counts_model is {name:?}, which counts"), "CURVE");
    }
    // With the equal split it has always been passed over.
    if let Some(name) = uses_of.filter(|_| is(ftcache_split::Curve)) {
        return without_effect(format!("use_counts_model is {name:?}, which counts"), "PROFILE");
    }
    if is(ftcache_split::Profile) {
        let rows = rows_of("use_counts", uses, model, model.expert_count() as usize)?;
        settings.constraints.split = Split::Profile(Profile::new(uses_of.unwrap_or_default(), &rows)?);
    } else if is(ftcache_split::Curve) {
        let rows = rows_of("miss_counts", misses, model, model.expert_count() as usize + 1)?;
        settings.constraints.split = Split::Curve(Curves::new(misses_of.unwrap_or_default(), rows)?);
    }
    Ok(())
}

/// A row of so many numbers for each layer.
fn rows_of<T: Copy>(name: &str, counts: &[T], model: &Model, width: usize) -> Result<Vec<Vec<T>>, Failure> {
    let (layers, experts) = (model.layer_count(), model.expert_count());
    if counts.len() != layers * width {
        let message = format!(
            "settings->{name} has {} counts; {layers} layers of {experts} experts need {}",
            counts.len(),
            layers * width
        );
        return Err(Failure::argument(message));
    }
    Ok(counts.chunks(width).map(<[T]>::to_vec).collect())
}
