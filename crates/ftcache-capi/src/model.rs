//! The model: layers, experts, and the bytes of a row in each bank.

use std::ffi::c_void;

use ftcache_core::{LayoutKey, Model, Quantisation};

use crate::boundary::{SizedStruct, array, guard, read_sized, required_mut, reserved};
use crate::failure::Failure;
use crate::status::ftcache_status;

/// What a model has.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_model_config {
    /// sizeof(ftcache_model_config).
    pub struct_size: u32,
    /// Mixture-of-experts layers, numbered from 0 in the order in which a token walks them. Dense layers do not count.
    pub layer_count: u32,
    /// Experts of a layer.
    pub expert_count: u32,
    /// Experts that a token is routed to in each layer.
    pub top_k: u32,
    /// 1 if all layers have one quantisation, so that layers without a tag and of equal bytes are alike; 0 if each
    /// layer's tag tells it.
    pub one_quantisation: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_model_config {}

/// What one layer's kernels read.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_layer {
    /// sizeof(ftcache_layer).
    pub struct_size: u32,
    /// Banks of the layer: entries of row_bytes.
    pub bank_count: u32,
    /// Bytes of one expert's row in each bank; 0 for a bank that this layer does not read. Copied.
    pub row_bytes: *const u64,
    /// The quantisation, as any bytes; layers of equal bytes and different tags never share slots. NULL: no tag.
    /// Copied.
    pub tag: *const c_void,
    /// Bytes of the tag.
    pub tag_bytes: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers and pointers only; NULL is a value of a pointer.
unsafe impl SizedStruct for ftcache_layer {}

/// A model's description, filled layer by layer.
///
/// One thread at a time. It may be freed once every configuration that is wanted has been made of it.
pub struct ftcache_model {
    expert_count: u32,
    top_k: u32,
    quantisation: Quantisation,
    layers: Vec<Option<LayoutKey>>,
}

impl ftcache_model {
    /// The model of a configuration, once every layer is set.
    pub(crate) fn build(&self) -> Result<Model, Failure> {
        if let Some(layer) = self.layers.iter().position(Option::is_none) {
            let message = format!("layer {layer} of {} is not set: ftcache_model_layer_set", self.layers.len());
            return Err(Failure::argument(message));
        }
        let layers = self.layers.iter().flatten().cloned().collect();
        Ok(Model::new(self.expert_count, self.top_k, self.quantisation, layers)?)
    }
}

/// Begins a model. *out is set to NULL if this does not succeed; else the caller frees it with ftcache_model_free.
/// Allocates; waits for nothing.
///
/// # Safety
///
/// config points to a struct of its struct_size; out points to a pointer.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_model_new(
    config: *const ftcache_model_config,
    out: *mut *mut ftcache_model,
) -> ftcache_status {
    guard(|| {
        // SAFETY: `out` points to a pointer by the caller's word.
        let out = unsafe { required_mut(out, "out") }?;
        *out = std::ptr::null_mut();
        // SAFETY: `config` points to a struct of its size by the caller's word.
        let config = unsafe { read_sized(config, "config") }?;
        reserved(config.reserved, "config->reserved")?;
        let quantisation = match config.one_quantisation {
            0 => Quantisation::PerLayer,
            1 => Quantisation::One,
            other => return Err(Failure::argument(format!("config->one_quantisation is {other}, not 0 or 1"))),
        };
        // A million layers is far past any model, and a mistaken count should not become an allocation.
        if config.layer_count > 1 << 20 {
            return Err(Failure::argument(format!(
                "config->layer_count is {}; at most {}",
                config.layer_count,
                1 << 20
            )));
        }
        // Each expert has its place in tables: the same of all of them together.
        let experts = u64::from(config.layer_count) * u64::from(config.expert_count);
        if experts > 1 << 24 {
            let ftcache_model_config { layer_count, expert_count, .. } = config;
            let message = format!("{layer_count} layers of {expert_count} experts are {experts}; at most {}", 1 << 24);
            return Err(Failure::argument(message));
        }
        let layers = vec![None; config.layer_count as usize];
        let (expert_count, top_k) = (config.expert_count, config.top_k);
        *out = Box::into_raw(Box::new(ftcache_model { expert_count, top_k, quantisation, layers }));
        Ok(())
    })
}

/// Sets what one layer's kernels read; again to replace it. Allocates; waits for nothing.
///
/// # Safety
///
/// model came from ftcache_model_new; layer_config points to a struct of its struct_size, and its pointers to
/// as many values as it says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_model_layer_set(
    model: *mut ftcache_model,
    layer: u32,
    layer_config: *const ftcache_layer,
) -> ftcache_status {
    guard(|| {
        // SAFETY: a handle of ours, used by one thread, by the caller's word.
        let model = unsafe { required_mut(model, "model") }?;
        // SAFETY: points to a struct of its size by the caller's word.
        let config = unsafe { read_sized(layer_config, "layer_config") }?;
        // SAFETY: `bank_count` values by the caller's word.
        let row_bytes = unsafe { array(config.row_bytes, u64::from(config.bank_count), "layer_config->row_bytes") }?;
        let key = match config.tag.is_null() {
            true if config.tag_bytes > 0 => {
                return Err(Failure::argument(format!("layer_config->tag is NULL, with {} bytes", config.tag_bytes)));
            }
            true => LayoutKey::untagged(row_bytes),
            false => {
                // SAFETY: `tag_bytes` bytes by the caller's word.
                let tag = unsafe { array(config.tag.cast::<u8>(), config.tag_bytes, "layer_config->tag") }?;
                LayoutKey::tagged(tag, row_bytes)
            }
        };
        let layer_count = model.layers.len();
        let place = model.layers.get_mut(layer as usize);
        *place.ok_or_else(|| Failure::range(format!("no layer {layer}: the model has {layer_count} layers")))? =
            Some(key);
        Ok(())
    })
}

/// Frees a model; NULL is accepted. Configurations that were made of it stay. Waits for nothing.
#[unsafe(no_mangle)]
pub extern "C" fn ftcache_model_free(model: Option<Box<ftcache_model>>) {
    let _ = guard(|| {
        drop(model);
        Ok(())
    });
}
