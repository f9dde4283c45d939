-- a finished run of four trials, as schema version 1 kept it
PRAGMA application_id = 1129269327;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE checkpoints (
    position INTEGER PRIMARY KEY,
    seconds REAL NOT NULL,
    file_name TEXT NOT NULL,
    checksum TEXT NOT NULL
);
INSERT INTO "checkpoints" VALUES(80,2.66352756000060253427e-01,'checkpoints/000000080.json','d179bc0ebc141b35e41eb970e1be0cc9c95a6ecce1cceadc4fb5549bc5688368');
CREATE TABLE decisions (
    position INTEGER PRIMARY KEY,
    seconds REAL NOT NULL,
    trial_id INTEGER NOT NULL REFERENCES trials(trial_id),
    step INTEGER NOT NULL,
    kind TEXT NOT NULL,
    reason TEXT NOT NULL,
    rule TEXT NOT NULL,
    numbers TEXT NOT NULL,
    message TEXT NOT NULL,
    UNIQUE (trial_id, step, kind)
);
INSERT INTO "decisions" VALUES(13,1.45581751999998232349e-01,0,1,'new_best','improved','study','{"loss": 5.457223033905029, "validation_loss": 5.457223033905029}','');
INSERT INTO "decisions" VALUES(14,1.45581751999998232349e-01,1,1,'new_best','improved','study','{"loss": 5.455826377868652, "validation_loss": 5.455826377868652}','');
INSERT INTO "decisions" VALUES(15,1.45581751999998232349e-01,2,1,'new_best','improved','study','{"loss": 5.4532983779907225, "validation_loss": 5.4532983779907225}','');
INSERT INTO "decisions" VALUES(16,1.45581751999998232349e-01,3,1,'new_best','improved','study','{"loss": 5.441509437561035, "validation_loss": 5.441509437561035}','');
INSERT INTO "decisions" VALUES(25,1.66879867000034209922e-01,0,2,'new_best','improved','study','{"loss": 5.456938076019287, "validation_loss": 5.456938076019287, "previous": 5.457223033905029, "previous_step": 1}','');
INSERT INTO "decisions" VALUES(26,1.66879867000034209922e-01,1,2,'new_best','improved','study','{"loss": 5.4541748046875, "validation_loss": 5.4541748046875, "previous": 5.455826377868652, "previous_step": 1}','');
INSERT INTO "decisions" VALUES(27,1.66879867000034209922e-01,2,2,'new_best','improved','study','{"loss": 5.448081398010254, "validation_loss": 5.448081398010254, "previous": 5.4532983779907225, "previous_step": 1}','');
INSERT INTO "decisions" VALUES(28,1.66879867000034209922e-01,3,2,'new_best','improved','study','{"loss": 5.424591445922852, "validation_loss": 5.424591445922852, "previous": 5.441509437561035, "previous_step": 1}','');
INSERT INTO "decisions" VALUES(37,1.87001394999924741568e-01,0,3,'new_best','improved','study','{"loss": 5.4565629959106445, "validation_loss": 5.4565629959106445, "previous": 5.456938076019287, "previous_step": 2}','');
INSERT INTO "decisions" VALUES(38,1.87001394999924741568e-01,1,3,'new_best','improved','study','{"loss": 5.4523920059204105, "validation_loss": 5.4523920059204105, "previous": 5.4541748046875, "previous_step": 2}','');
INSERT INTO "decisions" VALUES(39,1.87001394999924741568e-01,2,3,'new_best','improved','study','{"loss": 5.439814567565918, "validation_loss": 5.439814567565918, "previous": 5.448081398010254, "previous_step": 2}','');
INSERT INTO "decisions" VALUES(40,1.87001394999924741568e-01,3,3,'new_best','improved','study','{"loss": 5.405502128601074, "validation_loss": 5.405502128601074, "previous": 5.424591445922852, "previous_step": 2}','');
INSERT INTO "decisions" VALUES(49,2.08718151000084617407e-01,0,4,'new_best','improved','study','{"loss": 5.456344223022461, "validation_loss": 5.456344223022461, "previous": 5.4565629959106445, "previous_step": 3}','');
INSERT INTO "decisions" VALUES(50,2.08718151000084617407e-01,1,4,'new_best','improved','study','{"loss": 5.450904846191406, "validation_loss": 5.450904846191406, "previous": 5.4523920059204105, "previous_step": 3}','');
INSERT INTO "decisions" VALUES(51,2.08718151000084617407e-01,2,4,'new_best','improved','study','{"loss": 5.432517433166504, "validation_loss": 5.432517433166504, "previous": 5.439814567565918, "previous_step": 3}','');
INSERT INTO "decisions" VALUES(52,2.08718151000084617407e-01,3,4,'new_best','improved','study','{"loss": 5.392578506469727, "validation_loss": 5.392578506469727, "previous": 5.405502128601074, "previous_step": 3}','');
INSERT INTO "decisions" VALUES(61,2.29830970999955752631e-01,0,5,'new_best','improved','study','{"loss": 5.45578899383545, "validation_loss": 5.45578899383545, "previous": 5.456344223022461, "previous_step": 4}','');
INSERT INTO "decisions" VALUES(62,2.29830970999955752631e-01,1,5,'new_best','improved','study','{"loss": 5.4490564346313475, "validation_loss": 5.4490564346313475, "previous": 5.450904846191406, "previous_step": 4}','');
INSERT INTO "decisions" VALUES(63,2.29830970999955752631e-01,2,5,'new_best','improved','study','{"loss": 5.419345855712891, "validation_loss": 5.419345855712891, "previous": 5.432517433166504, "previous_step": 4}','');
INSERT INTO "decisions" VALUES(64,2.29830970999955752631e-01,3,5,'new_best','improved','study','{"loss": 5.378217697143555, "validation_loss": 5.378217697143555, "previous": 5.392578506469727, "previous_step": 4}','');
INSERT INTO "decisions" VALUES(73,2.54924628000026132212e-01,0,6,'new_best','improved','study','{"loss": 5.455069065093994, "validation_loss": 5.455069065093994, "previous": 5.45578899383545, "previous_step": 5}','');
INSERT INTO "decisions" VALUES(74,2.54924628000026132212e-01,0,6,'finish','completed','study','{"validation_loss": 5.455069065093994, "planned_steps": 6}','');
INSERT INTO "decisions" VALUES(75,2.54924628000026132212e-01,1,6,'new_best','improved','study','{"loss": 5.446999645233154, "validation_loss": 5.446999645233154, "previous": 5.4490564346313475, "previous_step": 5}','');
INSERT INTO "decisions" VALUES(76,2.54924628000026132212e-01,1,6,'finish','completed','study','{"validation_loss": 5.446999645233154, "planned_steps": 6}','');
INSERT INTO "decisions" VALUES(77,2.54924628000026132212e-01,2,6,'new_best','improved','study','{"loss": 5.402803897857666, "validation_loss": 5.402803897857666, "previous": 5.419345855712891, "previous_step": 5}','');
INSERT INTO "decisions" VALUES(78,2.54924628000026132212e-01,2,6,'finish','completed','study','{"validation_loss": 5.402803897857666, "planned_steps": 6}','');
INSERT INTO "decisions" VALUES(79,2.54924628000026132212e-01,3,6,'new_best','improved','study','{"loss": 5.362458038330078, "validation_loss": 5.362458038330078, "previous": 5.378217697143555, "previous_step": 5}','');
INSERT INTO "decisions" VALUES(80,2.54924628000026132212e-01,3,6,'finish','completed','study','{"validation_loss": 5.362458038330078, "planned_steps": 6}','');
CREATE TABLE evaluations (
    position INTEGER PRIMARY KEY,
    seconds REAL NOT NULL,
    trial_id INTEGER NOT NULL REFERENCES trials(trial_id),
    step INTEGER NOT NULL,
    validation_loss REAL,
    metrics TEXT NOT NULL,
    num_tokens INTEGER NOT NULL,
    UNIQUE (trial_id, step)
);
INSERT INTO "evaluations" VALUES(9,1.45581751999998232349e-01,0,1,5.4572230339050289416e+00,'{}',26);
INSERT INTO "evaluations" VALUES(10,1.45581751999998232349e-01,1,1,5.45582637786865198847e+00,'{}',26);
INSERT INTO "evaluations" VALUES(11,1.45581751999998232349e-01,2,1,5.45329837799072247861e+00,'{}',26);
INSERT INTO "evaluations" VALUES(12,1.45581751999998232349e-01,3,1,5.44150943756103533388e+00,'{}',26);
INSERT INTO "evaluations" VALUES(21,1.66879867000034209922e-01,0,2,5.45693807601928693173e+00,'{}',26);
INSERT INTO "evaluations" VALUES(22,1.66879867000034209922e-01,1,2,5.4541748046875,'{}',26);
INSERT INTO "evaluations" VALUES(23,1.66879867000034209922e-01,2,2,5.44808139801025426152e+00,'{}',26);
INSERT INTO "evaluations" VALUES(24,1.66879867000034209922e-01,3,2,5.42459144592285191777e+00,'{}',26);
INSERT INTO "evaluations" VALUES(33,1.87001394999924741568e-01,0,3,5.45656299591064453125e+00,'{}',26);
INSERT INTO "evaluations" VALUES(34,1.87001394999924741568e-01,1,3,5.45239200592041051152e+00,'{}',26);
INSERT INTO "evaluations" VALUES(35,1.87001394999924741568e-01,2,3,5.43981456756591796875e+00,'{}',26);
INSERT INTO "evaluations" VALUES(36,1.87001394999924741568e-01,3,3,5.40550212860107404111e+00,'{}',26);
INSERT INTO "evaluations" VALUES(45,2.08718151000084617407e-01,0,4,5.45634422302246058222e+00,'{}',26);
INSERT INTO "evaluations" VALUES(46,2.08718151000084617407e-01,1,4,5.45090484619140625e+00,'{}',26);
INSERT INTO "evaluations" VALUES(47,2.08718151000084617407e-01,2,4,5.43251743316650426152e+00,'{}',26);
INSERT INTO "evaluations" VALUES(48,2.08718151000084617407e-01,3,4,5.39257850646972691777e+00,'{}',26);
INSERT INTO "evaluations" VALUES(57,2.29830970999955752631e-01,0,5,5.45578899383545,'{}',26);
INSERT INTO "evaluations" VALUES(58,2.29830970999955752631e-01,1,5,5.44905643463134747861e+00,'{}',26);
INSERT INTO "evaluations" VALUES(59,2.29830970999955752631e-01,2,5,5.419345855712890625e+00,'{}',26);
INSERT INTO "evaluations" VALUES(60,2.29830970999955752631e-01,3,5,5.3782176971435546875e+00,'{}',26);
INSERT INTO "evaluations" VALUES(69,2.54924628000026132212e-01,0,6,5.45506906509399414062e+00,'{}',26);
INSERT INTO "evaluations" VALUES(70,2.54924628000026132212e-01,1,6,5.4469996452331539416e+00,'{}',26);
INSERT INTO "evaluations" VALUES(71,2.54924628000026132212e-01,2,6,5.40280389785766601562e+00,'{}',26);
INSERT INTO "evaluations" VALUES(72,2.54924628000026132212e-01,3,6,5.36245803833007794736e+00,'{}',26);
CREATE TABLE facts (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "facts" VALUES('are_results_written','true');
INSERT INTO "facts" VALUES('attention','"torch scaled_dot_product_attention, per sequence, in buckets of equal length"');
INSERT INTO "facts" VALUES('backend','"reference: torch, per sample (packing changes no bit)"');
INSERT INTO "facts" VALUES('base_metrics','{"loss": 5.457680797576904}');
INSERT INTO "facts" VALUES('base_model','"/data/sums/model"');
INSERT INTO "facts" VALUES('best_trial_id','3');
INSERT INTO "facts" VALUES('data_counts','{"rows_read": 25, "usable_training_rows": 19, "training_rows": 19, "trained_tokens_per_epoch": 47, "validation_rows": 6, "duplicate": 1}');
INSERT INTO "facts" VALUES('data_format','"prompt_completion"');
INSERT INTO "facts" VALUES('data_hash','"52763f4ca86042f9ab24fbbcf8d2d06ca6458416ff6a568cf496d48564fb4c72"');
INSERT INTO "facts" VALUES('data_problems','[{"where": "/data/sums/train.jsonl:25", "found": "1 row with the tokens of an earlier row", "allowed": "each row once", "mend": "Remove copies that are not meant."}]');
INSERT INTO "facts" VALUES('database_file','["/data/sums/finished/run.db", 65024, 5537795]');
INSERT INTO "facts" VALUES('default_trial_id','null');
INSERT INTO "facts" VALUES('device','"cpu (AMD EPYC)"');
INSERT INTO "facts" VALUES('evaluate_seconds','0.1085625489999984');
INSERT INTO "facts" VALUES('evaluation_cost_fraction','1.0');
INSERT INTO "facts" VALUES('evaluation_rows','4');
INSERT INTO "facts" VALUES('has_begun','true');
INSERT INTO "facts" VALUES('is_chat','false');
INSERT INTO "facts" VALUES('kept_share','1.0');
INSERT INTO "facts" VALUES('kept_tokens_after_shortage','null');
INSERT INTO "facts" VALUES('load_seconds','0.007493430000067747');
INSERT INTO "facts" VALUES('memory_available_bytes','24054984704');
INSERT INTO "facts" VALUES('memory_recompute','"auto"');
INSERT INTO "facts" VALUES('memory_shortages','0');
INSERT INTO "facts" VALUES('metric','"loss"');
INSERT INTO "facts" VALUES('metric_maximize','false');
INSERT INTO "facts" VALUES('micro_batch_tokens','{"training": 2048, "evaluation": 4096}');
INSERT INTO "facts" VALUES('model_hash','"6e8f7241b40f3ad01dcc3d6ca92ad719fb68af426d630557d7f4d950f9b45dd3"');
INSERT INTO "facts" VALUES('num_slots','4');
INSERT INTO "facts" VALUES('num_train_rows','19');
INSERT INTO "facts" VALUES('objective','"sft"');
INSERT INTO "facts" VALUES('precision','"float32 base, float32 adapters"');
INSERT INTO "facts" VALUES('rank_rows','64');
INSERT INTO "facts" VALUES('recomputed_above_tokens','null');
INSERT INTO "facts" VALUES('recomputed_passes','0');
INSERT INTO "facts" VALUES('run_directory','"/data/sums/finished"');
INSERT INTO "facts" VALUES('run_id','"9e131564f83b4328b07e02a6945393a1"');
INSERT INTO "facts" VALUES('run_seconds','0.38756616699993174');
INSERT INTO "facts" VALUES('state','"done"');
INSERT INTO "facts" VALUES('target_modules','["model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj", "model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj"]');
INSERT INTO "facts" VALUES('task','{"model_name_or_path": "/data/sums/model", "dataset": {"train": "/data/sums/train.jsonl", "validation": 0.25, "format": "auto", "columns": {}, "prompt_template": null, "on_long_rows": "drop", "on_bad_rows": "error", "completion_only_loss": true, "max_length": 64, "max_train_samples": null}, "objective": "sft", "lora": {"target_modules": ["q_proj", "v_proj"], "lora_dropout": 0.0, "use_rslora": false, "r": 16, "lora_alpha": "2r"}, "training": {"num_train_epochs": 3.0, "max_steps": 6, "lr_scheduler_type": "constant", "warmup_ratio": 0.0, "weight_decay": 0.01, "max_grad_norm": 1.0, "seed": 0, "learning_rate": 0.0002, "batch_size": 2}, "evaluation": {"max_examples": 4, "warmup_evaluations": 3, "every_fraction": 0.05, "metric": "loss", "max_new_tokens": 64, "max_cost_fraction": 0.1}, "search": {"sampler": "grid", "trials": 60, "space": {"learning_rate": [0.001, 0.01], "r": [2, 4]}, "constraints": [], "first_trials": null, "max_gpu_hours": null}, "early_exit": {"rule": "none", "warmup_fraction": 0.05, "select_fraction": 0.5, "reselect_at": 0.2, "reselect_fraction": 0.3, "window": 2, "divergence_patience": 2, "slope_threshold": 0.001, "overfitting_patience": 4, "gap_threshold": 0.3, "overfitting_ignores_new_best": true, "ema_weight": 0.1, "patience": 3, "min_improvement": 0.0, "reduction_factor": 3, "startup_trials": 5}, "memory": {"limit": null, "margin": 0.05, "profile": true, "recompute": "auto"}, "priority": 0, "num_gpus": 0, "report_to": "none"}');
INSERT INTO "facts" VALUES('task_hash','"5d517785a9504f914f0c3b67918c93d5cf7bcaf67ec15bba7c27b2513bd89e0b"');
INSERT INTO "facts" VALUES('task_name','"finished"');
INSERT INTO "facts" VALUES('threads','1');
INSERT INTO "facts" VALUES('token_budget','2048');
INSERT INTO "facts" VALUES('tokenise_seconds','3.6100932299998476');
INSERT INTO "facts" VALUES('tokenizer_hash','"4772bb43f88ca234a1e2ad0d99898654220e90e7fe0e08df86e55fd85335158d"');
INSERT INTO "facts" VALUES('train_fingerprint','"5e672cc628bd39b18f07d2f78c4c3c16724fddd90ee18042b011de5e16793131"');
INSERT INTO "facts" VALUES('train_input','{"num_rows_read": 25, "num_bytes": 962, "files_hash": "52763f4ca86042f9ab24fbbcf8d2d06ca6458416ff6a568cf496d48564fb4c72", "rows_hash": "f6d4c952f19c08050bc2a2bd581113a937fc6ca35fd322db346f160490976815"}');
INSERT INTO "facts" VALUES('train_seconds','0.12399322500004928');
INSERT INTO "facts" VALUES('training','{"lora_alpha": "MultipleOf(parameter=''r'', factor=2)", "batch_size": 2, "lora_dropout": 0.0, "weight_decay": 0.01, "warmup_ratio": 0.0, "lr_scheduler_type": "constant", "num_train_epochs": 3.0, "max_grad_norm": 1.0, "seed": 0, "use_rslora": false, "max_steps": 6}');
INSERT INTO "facts" VALUES('validation_fingerprint','"27fffedf6c0d7f9d9784123ba0e1094690e9ebd9a297970b0942fd9d0ed15348"');
INSERT INTO "facts" VALUES('validation_input','{"num_rows_read": 0, "num_bytes": 0, "files_hash": "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945", "rows_hash": "f7cf34c82034e8bde53271d1d592d5d4cc321504478f09fb9dd8e74175d86cef"}');
INSERT INTO "facts" VALUES('versions','{"python": "3.11.7", "cohort-lora": "0.1.0", "torch": "2.13.0+cpu", "transformers": "5.17.0", "tokenizers": "0.23.3", "safetensors": "0.8.0", "numpy": "2.4.6", "triton": "3.9.0"}');
INSERT INTO "facts" VALUES('warmup_fraction','0.05');
CREATE TABLE failures (
    position INTEGER PRIMARY KEY,
    seconds REAL NOT NULL,
    trial_id INTEGER NOT NULL REFERENCES trials(trial_id),
    step INTEGER NOT NULL,
    message TEXT NOT NULL,
    UNIQUE (trial_id, step)
);
CREATE TABLE residencies (
    residency_id INTEGER PRIMARY KEY,
    trial_id INTEGER NOT NULL REFERENCES trials(trial_id),
    slot INTEGER NOT NULL,
    start_position INTEGER NOT NULL,
    start_seconds REAL NOT NULL,
    stop_position INTEGER,
    stop_seconds REAL
);
INSERT INTO "residencies" VALUES(1,0,0,4,7.20860199999151518568e-02,64,2.53628884999898218666e-01);
INSERT INTO "residencies" VALUES(2,1,1,4,7.27101969998784625204e-02,64,2.54176588000063929939e-01);
INSERT INTO "residencies" VALUES(3,2,2,4,7.2998605000066163484e-02,64,2.54505034999965573661e-01);
INSERT INTO "residencies" VALUES(4,3,3,4,7.31978999999682855559e-02,64,2.54850688000033187563e-01);
CREATE TABLE steps (
    position INTEGER PRIMARY KEY,
    seconds REAL NOT NULL,
    trial_id INTEGER NOT NULL REFERENCES trials(trial_id),
    step INTEGER NOT NULL,
    loss REAL,
    grad_norm REAL,
    learning_rate REAL,
    num_tokens INTEGER NOT NULL,
    UNIQUE (trial_id, step)
);
INSERT INTO "steps" VALUES(5,1.45581751999998232349e-01,0,1,5.47936592102050745722e+00,2.23726883530616760253e-01,0.001,13);
INSERT INTO "steps" VALUES(6,1.45581751999998232349e-01,1,1,5.47936592102050745722e+00,0.600225567817688,0.001,13);
INSERT INTO "steps" VALUES(7,1.45581751999998232349e-01,2,1,5.47936592102050745722e+00,2.23726883530616760253e-01,0.01,13);
INSERT INTO "steps" VALUES(8,1.45581751999998232349e-01,3,1,5.47936592102050745722e+00,0.600225567817688,0.01,13);
INSERT INTO "steps" VALUES(65,2.54924628000026132212e-01,0,6,5.45722611745198538102e+00,2.75036036968231201171e-01,0.001,14);
INSERT INTO "steps" VALUES(66,2.54924628000026132212e-01,1,6,5.4455204010009765625e+00,5.95488727092742919921e-01,0.001,14);
INSERT INTO "steps" VALUES(67,2.54924628000026132212e-01,2,6,5.39054807027181,4.45641398429870605468e-01,0.01,14);
INSERT INTO "steps" VALUES(68,2.54924628000026132212e-01,3,6,5.35444545745849609375e+00,0.536555826663971,0.01,14);
CREATE TABLE trials (
    position INTEGER PRIMARY KEY,
    seconds REAL NOT NULL,
    trial_id INTEGER NOT NULL UNIQUE,
    parameters TEXT NOT NULL,
    planned_steps INTEGER NOT NULL,
    planned_tokens INTEGER,
    -- text: a 64-bit unsigned seed does not fit SQLite's integers
    seed TEXT NOT NULL
);
INSERT INTO "trials" VALUES(1,9.50299999885828583501e-04,0,'{"learning_rate": 0.001, "r": 2, "lora_alpha": 4, "batch_size": 2}',6,78,'0');
INSERT INTO "trials" VALUES(2,9.50299999885828583501e-04,1,'{"learning_rate": 0.001, "r": 4, "lora_alpha": 8, "batch_size": 2}',6,78,'0');
INSERT INTO "trials" VALUES(3,9.50299999885828583501e-04,2,'{"learning_rate": 0.01, "r": 2, "lora_alpha": 4, "batch_size": 2}',6,78,'0');
INSERT INTO "trials" VALUES(4,9.50299999885828583501e-04,3,'{"learning_rate": 0.01, "r": 4, "lora_alpha": 8, "batch_size": 2}',6,78,'0');
CREATE INDEX residencies_open ON residencies (trial_id) WHERE stop_position IS NULL;
CREATE VIEW log AS
    SELECT position, seconds, trial_id, 0 AS step, 'trial' AS kind FROM trials
    UNION ALL SELECT position, seconds, trial_id, step, 'step' FROM steps
    UNION ALL SELECT position, seconds, trial_id, step, 'evaluation' FROM evaluations
    UNION ALL SELECT position, seconds, trial_id, step, 'failure' FROM failures
    UNION ALL SELECT position, seconds, trial_id, step, kind FROM decisions;
COMMIT;
