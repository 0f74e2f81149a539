//! What `ftcache load` prints: how a load went, as tables or as JSON; layers by the model's own numbers, banks by name.

use std::fmt::Write;

use ftcache::transfer::{HugePages, LayerReport, LoadReport, LockRefusal, PinRefusal, Residence, Unpinned};
use ftcache::{BankId, LayerId};
use ftcache_model::MoeModel;
use serde_json::{Value, json};

use crate::table::{Table, binary, count, grouped, ranges};

/// A load that is done.
pub(crate) struct Loaded<'a> {
    pub(crate) model: &'a MoeModel,
    pub(crate) report: LoadReport,
    /// The name of the GPU that memory was pinned for, or why it was none.
    pub(crate) device: Result<String, String>,
}

impl Loaded<'_> {
    /// The model's own number of a layer.
    fn block(&self, layer: LayerId) -> u32 {
        self.model.layers[layer.index()].block
    }

    fn place(&self, layer: LayerId, bank: BankId) -> String {
        format!("block {} {}", self.block(layer), self.model.banks[bank.index()])
    }

    fn residence(&self, residence: Residence) -> &'static str {
        match residence {
            // The host device counts what it is told of, and pins nothing.
            Residence::Pinned if self.device.is_err() => "registered",
            Residence::Pinned => "pinned",
            Residence::Locked => "locked",
            Residence::Pageable => "pageable",
        }
    }

    /// The layers that are kept so, for each way in which any is.
    fn residences(&self) -> impl Iterator<Item = (&'static str, Vec<&LayerReport>)> {
        [Residence::Pinned, Residence::Locked, Residence::Pageable].into_iter().filter_map(|residence| {
            let layers = self.report.layers.iter().filter(|layer| layer.residence == residence);
            let layers: Vec<&LayerReport> = layers.collect();
            (!layers.is_empty()).then(|| (self.residence(residence), layers))
        })
    }

    fn bytes_per_second(&self) -> f64 {
        self.report.bytes() as f64 / self.report.read_time.as_secs_f64()
    }

    pub(crate) fn write(&self, out: &mut String) -> std::fmt::Result {
        let Self { model, report, .. } = self;
        writeln!(
            out,
            "{} ({}), {} of {} in {}",
            model.name,
            model.architecture,
            count(report.layers.len() as u64, "layer"),
            count(model.expert_count.into(), "expert"),
            count(report.files.len() as u64, "file")
        )?;
        match &self.device {
            Ok(device) => writeln!(out, "device: {device}")?,
            Err(why) => writeln!(
                out,
                "nothing was pinned for a GPU, since there is none to use ({why}); what is registered here is \
                 so with the host device alone"
            )?,
        }
        let [read, pin, total] = [report.read_time, report.pin_time, report.total_time].map(|time| time.as_secs_f64());
        writeln!(
            out,
            "read {} ({} bytes) in {read:.3} s, {:.2} GB/s; {pin:.3} s for pins and locks, {total:.3} s in all",
            binary(report.bytes()),
            grouped(report.bytes()),
            self.bytes_per_second() / 1e9
        )?;
        writeln!(out)?;
        self.write_residences(out)?;
        self.write_unpinned(out)?;
        let mut table = Table::new(["file", "read"]).left_aligned();
        for file in &report.files {
            let read = match (file.direct, &file.reason) {
                (Some(alignment), _) => format!("directly, in multiples of {alignment} bytes"),
                (None, Some(reason)) => format!("by way of the page cache: {reason}"),
                (None, None) => "by way of the page cache, as asked".to_owned(),
            };
            table.row([file.path.display().to_string(), read]);
        }
        write!(out, "\n{table}")?;
        match &report.huge_pages {
            HugePages::NotAsked => Ok(()),
            HugePages::Accepted => writeln!(out, "\nhuge pages: advised; how far the system follows is its own affair"),
            HugePages::Refused(reason) => writeln!(out, "\nhuge pages: refused: {reason}"),
        }
    }

    fn write_residences(&self, out: &mut String) -> std::fmt::Result {
        let mut table = Table::new(["kept", "layers", "bytes", "bytes of pages", "registrations"]);
        for (residence, layers) in self.residences() {
            let sum = |number: fn(&LayerReport) -> u64| grouped(layers.iter().map(|layer| number(layer)).sum());
            table.row([
                residence.to_owned(),
                grouped(layers.len() as u64),
                sum(|layer| layer.bytes),
                sum(|layer| layer.page_bytes),
                sum(|layer| layer.registration_count as u64),
            ]);
        }
        write!(out, "{table}")
    }

    /// Which layers are not pinned and why, those of one reason together; and what was refused.
    fn write_unpinned(&self, out: &mut String) -> std::fmt::Result {
        let mut reasons: Vec<(Unpinned, Vec<u32>)> = Vec::new();
        for layer in &self.report.layers {
            let Some(unpinned) = layer.unpinned else { continue };
            let block = self.block(layer.layer);
            match reasons.iter_mut().find(|(reason, _)| *reason == unpinned) {
                Some((_, blocks)) => blocks.push(block),
                None => reasons.push((unpinned, vec![block])),
            }
        }
        if !reasons.is_empty() {
            writeln!(out)?;
        }
        let word = self.residence(Residence::Pinned);
        for (reason, blocks) in reasons {
            let blocks = format!("block{} {}", if blocks.len() == 1 { "" } else { "s" }, ranges(blocks));
            writeln!(out, "{blocks} not {word}: {reason}")?;
        }
        if let Some(PinRefusal { layer, bank, wanted_bytes, pinned_bytes, budget_bytes, source }) =
            &self.report.pin_refusal
        {
            let (place, wanted, pinned) = (self.place(*layer, *bank), grouped(*wanted_bytes), grouped(*pinned_bytes));
            let budget = budget_bytes.map_or(String::new(), |bytes| format!(" of a budget of {}", grouped(bytes)));
            writeln!(out, "refused: {wanted} bytes of {place}, with {pinned} {word}{budget}: {source}")?;
        }
        if let Some(LockRefusal { layer, bank, wanted_bytes, locked_bytes, limit_bytes, reason }) =
            &self.report.lock_refusal
        {
            let (place, wanted, locked) = (self.place(*layer, *bank), grouped(*wanted_bytes), grouped(*locked_bytes));
            let limit = limit_bytes.map_or(String::new(), |bytes| format!(" of a limit of {}", grouped(bytes)));
            writeln!(out, "not locked: {wanted} bytes of {place}, with {locked} locked{limit}: {reason}")?;
        }
        Ok(())
    }

    pub(crate) fn json(&self) -> Value {
        let Self { model, report, .. } = self;
        let layer = |layer: &LayerReport| {
            json!({
                "block": self.block(layer.layer),
                "bytes": layer.bytes,
                "page_bytes": layer.page_bytes,
                "kept": self.residence(layer.residence),
                "registrations": layer.registration_count,
                "unpinned": layer.unpinned.map(unpinned_json),
            })
        };
        let residence = |(residence, layers): (&str, Vec<&LayerReport>)| {
            json!({
                "kept": residence,
                "layers": layers.len(),
                "bytes": layers.iter().map(|layer| layer.bytes).sum::<u64>(),
                "page_bytes": layers.iter().map(|layer| layer.page_bytes).sum::<u64>(),
                "registrations": layers.iter().map(|layer| layer.registration_count).sum::<usize>(),
            })
        };
        let files: Vec<Value> = report
            .files
            .iter()
            .map(|file| json!({ "path": file.path.to_string_lossy(), "direct": file.direct, "reason": file.reason }))
            .collect();
        let (accepted, refused) = match &report.huge_pages {
            HugePages::NotAsked => (None, None),
            HugePages::Accepted => (Some(true), None),
            HugePages::Refused(reason) => (Some(false), Some(reason)),
        };
        json!({
            "name": model.name,
            "device": self.device.as_ref().ok(),
            "no_device": self.device.as_ref().err(),
            "bytes": report.bytes(),
            "read_seconds": report.read_time.as_secs_f64(),
            "read_bytes_per_second": self.bytes_per_second(),
            "pin_seconds": report.pin_time.as_secs_f64(),
            "total_seconds": report.total_time.as_secs_f64(),
            "residences": self.residences().map(residence).collect::<Vec<_>>(),
            "layers": report.layers.iter().map(layer).collect::<Vec<_>>(),
            "files": files,
            "huge_pages": { "accepted": accepted, "reason": refused },
            "pin_refusal": report.pin_refusal.as_ref().map(|refusal| json!({
                "block": self.block(refusal.layer),
                "bank": model.banks[refusal.bank.index()],
                "wanted_bytes": refusal.wanted_bytes,
                "pinned_bytes": refusal.pinned_bytes,
                "budget_bytes": refusal.budget_bytes,
                "reason": refusal.source.to_string(),
            })),
            "lock_refusal": report.lock_refusal.as_ref().map(|refusal| json!({
                "block": self.block(refusal.layer),
                "bank": model.banks[refusal.bank.index()],
                "wanted_bytes": refusal.wanted_bytes,
                "locked_bytes": refusal.locked_bytes,
                "limit_bytes": refusal.limit_bytes,
                "reason": refusal.reason,
            })),
        })
    }
}

fn unpinned_json(unpinned: Unpinned) -> Value {
    match unpinned {
        Unpinned::NotAsked => json!({ "reason": "not_asked" }),
        Unpinned::Cpu => json!({ "reason": "cpu" }),
        Unpinned::Budget { needed_bytes, left_bytes } => {
            json!({ "reason": "budget", "needed_bytes": needed_bytes, "left_bytes": left_bytes })
        }
        Unpinned::Refused => json!({ "reason": "refused" }),
        Unpinned::AfterRefusal => json!({ "reason": "after_refusal" }),
        Unpinned::Freed => json!({ "reason": "freed" }),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ftcache::DeviceError;
    use ftcache::transfer::FileReport;
    use ftcache_model::MoeLayer;

    use super::*;

    fn model() -> MoeModel {
        let layer = |block| MoeLayer { block, tag: "F16".to_owned(), tensors: Vec::new() };
        MoeModel {
            name: "name".to_owned(),
            architecture: "arch".to_owned(),
            block_count: 12,
            expert_count: 1,
            top_k: 1,
            banks: ["gate", "up", "down"].map(str::to_owned).to_vec(),
            layers: [1, 2, 3, 5, 7, 9, 11].map(layer).to_vec(),
            files: Vec::new(),
        }
    }

    /// Every way in which a layer is kept, and every reason against it.
    fn report() -> LoadReport {
        let budget = Unpinned::Budget { needed_bytes: 8192, left_bytes: 4096 };
        let layers = [
            (Residence::Pinned, None),
            (Residence::Pageable, Some(budget)),
            (Residence::Locked, Some(Unpinned::Cpu)),
            (Residence::Locked, Some(budget)),
            (Residence::Pageable, Some(Unpinned::Refused)),
            (Residence::Pageable, Some(Unpinned::AfterRefusal)),
            (Residence::Pageable, Some(budget)),
        ];
        let layers = layers.iter().enumerate().map(|(index, &(residence, unpinned))| LayerReport {
            layer: LayerId::from_index(index),
            bytes: 1 << index,
            page_bytes: 8192,
            residence,
            registration_count: if unpinned.is_none() { 3 } else { 0 },
            unpinned,
        });
        let file = |path: &str, direct, reason: Option<&str>| {
            let reason = reason.map(str::to_owned);
            FileReport { path: path.into(), direct, reason }
        };
        let layer = LayerId::new(4);
        LoadReport {
            layers: layers.collect(),
            files: vec![
                file("one.gguf", Some(512), None),
                file("three.gguf", None, Some("the file system refuses it: Invalid argument (os error 22)")),
                file("four.gguf", None, None),
            ],
            huge_pages: HugePages::Refused("Invalid argument (os error 22)".to_owned()),
            register_bytes: 1 << 30,
            pin_refusal: Some(PinRefusal {
                layer,
                bank: BankId::new(2),
                wanted_bytes: 8192,
                pinned_bytes: 16_384,
                budget_bytes: Some(65_536),
                source: DeviceError::OutOfMemory { wanted_bytes: 8192, free_bytes: 100 },
            }),
            lock_refusal: Some(LockRefusal {
                layer,
                bank: BankId::new(1),
                wanted_bytes: 12_288,
                locked_bytes: 16_384,
                limit_bytes: Some(24_576),
                reason: "Cannot allocate memory (os error 12)".to_owned(),
            }),
            read_time: Duration::from_nanos(254),
            pin_time: Duration::from_millis(1500),
            total_time: Duration::from_millis(2250),
        }
    }

    fn written(device: Result<&str, &str>, report: LoadReport) -> String {
        let device = device.map(str::to_owned).map_err(str::to_owned);
        let mut out = String::new();
        Loaded { model: &model(), report, device }.write(&mut out).unwrap();
        out
    }

    #[test]
    fn blocks_reasons_and_refusals_are_named_with_their_numbers() {
        insta::assert_snapshot!(written(Ok("card"), report()), @"
        name (arch), 7 layers of 1 expert in 3 files
        device: card
        read 127 B (127 bytes) in 0.000 s, 0.50 GB/s; 1.500 s for pins and locks, 2.250 s in all

        kept      layers  bytes  bytes of pages  registrations
        pinned         1      1           8,192              3
        locked         2     12          16,384              0
        pageable       4    114          32,768              0

        blocks 2, 5, 11 not pinned: 8192 bytes of pages each; the budget had 4096 left
        block 3 not pinned: the CPU computes it
        block 7 not pinned: the device refused
        block 9 not pinned: not tried after the refusal
        refused: 8,192 bytes of block 7 down, with 16,384 pinned of a budget of 65,536: 8192 bytes of device memory wanted; 100 are free
        not locked: 12,288 bytes of block 7 up, with 16,384 locked of a limit of 24,576: Cannot allocate memory (os error 12)

        file        read
        one.gguf    directly, in multiples of 512 bytes
        three.gguf  by way of the page cache: the file system refuses it: Invalid argument (os error 22)
        four.gguf   by way of the page cache, as asked

        huge pages: refused: Invalid argument (os error 22)
        ");
    }

    #[test]
    fn what_there_is_none_of_is_not_written() {
        let mut report = report();
        report.layers.truncate(1);
        report.files.truncate(1);
        (report.pin_refusal, report.lock_refusal, report.huge_pages) = (None, None, HugePages::NotAsked);
        insta::assert_snapshot!(written(Err("no driver"), report), @"
        name (arch), 1 layer of 1 expert in 1 file
        nothing was pinned for a GPU, since there is none to use (no driver); what is registered here is so with the host device alone
        read 1 B (1 bytes) in 0.000 s, 0.00 GB/s; 1.500 s for pins and locks, 2.250 s in all

        kept        layers  bytes  bytes of pages  registrations
        registered       1      1           8,192              3

        file      read
        one.gguf  directly, in multiples of 512 bytes
        ");
    }

    #[test]
    fn json_says_the_same() {
        let (model, device) = (model(), Ok("card".to_owned()));
        let json = Loaded { model: &model, report: report(), device }.json();
        assert_eq!((&json["device"], &json["no_device"]), (&json!("card"), &Value::Null));
        let residence = |kept: &str, layers: u64, bytes: u64, registrations: u64| {
            json!({
                "kept": kept, "layers": layers, "bytes": bytes, "page_bytes": 8192 * layers,
                "registrations": registrations,
            })
        };
        let kept = [residence("pinned", 1, 1, 3), residence("locked", 2, 12, 0), residence("pageable", 4, 114, 0)];
        assert_eq!(json["residences"], json!(kept));
        let unpinned: Vec<&Value> = json["layers"].as_array().unwrap().iter().map(|layer| &layer["unpinned"]).collect();
        let budget = json!({ "reason": "budget", "needed_bytes": 8192, "left_bytes": 4096 });
        let other = |reason: &str| json!({ "reason": reason });
        let [cpu, refused, after] = ["cpu", "refused", "after_refusal"].map(other);
        assert_eq!(unpinned, [&Value::Null, &budget, &cpu, &budget, &refused, &after, &budget]);
        let layer = json!({
            "block": 2, "bytes": 2, "page_bytes": 8192, "kept": "pageable", "registrations": 0, "unpinned": budget,
        });
        assert_eq!(json["layers"][1], layer);
        let pin = json!({
            "block": 7, "bank": "down", "wanted_bytes": 8192, "pinned_bytes": 16_384, "budget_bytes": 65_536,
            "reason": "8192 bytes of device memory wanted; 100 are free",
        });
        assert_eq!(json["pin_refusal"], pin);
        let lock = json!({
            "block": 7, "bank": "up", "wanted_bytes": 12_288, "locked_bytes": 16_384, "limit_bytes": 24_576,
            "reason": "Cannot allocate memory (os error 12)",
        });
        assert_eq!(json["lock_refusal"], lock);
        assert_eq!(json["files"][0], json!({ "path": "one.gguf", "direct": 512, "reason": null }));
        assert_eq!(json["files"][2], json!({ "path": "four.gguf", "direct": null, "reason": null }));
        assert_eq!(json["huge_pages"], json!({ "accepted": false, "reason": "Invalid argument (os error 22)" }));
        assert_eq!((&json["pin_seconds"], &json["total_seconds"]), (&json!(1.5), &json!(2.25)));
        let json = Loaded { model: &model, report: report(), device: Err("no driver".to_owned()) }.json();
        assert_eq!((&json["device"], &json["no_device"]), (&Value::Null, &json!("no driver")));
        assert_eq!(
            (&json["residences"][0]["kept"], &json["layers"][0]["kept"]),
            (&json!("registered"), &json!("registered"))
        );
    }
}
