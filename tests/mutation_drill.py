"""The mutation drill: break a kernel, a formula or the lab on purpose, one line at a time, and see a test turn red.

Each mutation is applied to a copy of the tree, the copy is built (one instruction set, little optimization; Python needs none) and the
tests named for it are run against it. A mutation that every test survives is a hole in the tests: exit code 1.

    make mutation                 all of them
    python tests/mutation_drill.py --list
    python tests/mutation_drill.py eps mask        those whose name contains a word
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from normlab.kernels import cpu

ROOT = Path(__file__).resolve().parent.parent
EXTENSION = getattr(cpu.native, "_extension", cpu.native).__file__  # as installed
KERNELS = "tests/kernels/test_kernels.py"


@dataclass(frozen=True)
class Mutation:
    name: str
    file: str
    old: str
    new: str
    tests: str  # pytest -k expression
    module: str = KERNELS

    @property
    def native(self) -> bool:
        return self.file.startswith("csrc")


PLACE, MODEL, SEEN, NORM = "src/normlab/placements", "src/normlab/models", "src/normlab/watch", "src/normlab/norms"
KERNEL = "src/normlab/kernels"
SERVE, FOR_SERVER = "src/normlab/report/serve", "tests/report/test_serve.py"
FOR_PLACEMENTS, FOR_DEPTHS = "tests/placements/test_formulas.py", "tests/placements/test_initialization.py"
FOR_MODELS, FOR_CACHE, FOR_PADDING = (
    "tests/models/test_against_others.py",
    "tests/models/test_generation.py",
    "tests/models/test_padding.py",
)
FOR_PROBES, FOR_WATCH, FOR_LOOPS = (
    "tests/watch/test_probes.py",
    "tests/watch/test_watch.py",
    "tests/watch/test_training.py",
)
FOR_LAYOUTS, FOR_BUDGET, FOR_MANNERS = (
    "tests/watch/test_layouts.py",
    "tests/watch/test_budget.py",
    "tests/watch/test_manners.py",
)
ROW, COLUMN, POINT = "csrc", "csrc", "csrc/pointwise.cpp"
AGREES = "agrees_with_float64"
TRAINER, TASKS, ANSWER = "src/normlab/lab", "src/normlab/lab", "src/normlab/answer"
FOR_TRAINER, FOR_TASKS, FOR_ANSWER = "tests/lab/test_train.py", "tests/lab/test_tasks.py", "tests/answer/test_answer.py"
FOR_RESUMED, FOR_DECISIONS = "tests/lab/test_resume.py", "tests/answer/test_decisions.py"
FOR_STAGES = "tests/answer/test_stages.py"
FOR_ASSAYS = "tests/assays/test_blocks_asked.py"
FOR_BOUNDARY, FOR_PROCESS, FOR_FILES = (
    "tests/kernels/test_boundary.py",
    "tests/kernels/test_process.py",
    "tests/runs/test_hostile_files.py",
)
MUTATIONS = [
    Mutation("row: drop eps", ROW, "1.0 / sqrt(square + a.eps)", "1.0 / sqrt(square)", f"{AGREES} and layer and float32"),
    Mutation("row: drop the gain", ROW, "xhat * factor + constant, count);", "xhat + constant, count);", f"{AGREES} and rms and float32"),
    Mutation("row: gain of the first column for all", ROW, "const Bk factor = load_same(gain + j), constant", "const Bk factor = Bk::all(gain[0]), constant", f"{AGREES} and rms and float32"),
    Mutation("row: swap mean and rms", ROW, "const bool centered = a.mode == RowMode::layer;", "const bool centered = a.mode != RowMode::layer;", f"{AGREES} and layer and float32"),
    Mutation("row: wrong stride", ROW, ": (const T*)a.x + row * a.x_stride;", ": (const T*)a.x + row * a.width;", "strided"),
    Mutation("row: one output row for a group", ROW, "y[i] = (T*)a.y + row[i] * a.width;", "y[i] = (T*)a.y + row[0] * a.width;", f"{AGREES} and layer and float32"),
    Mutation("row: a group shares a shift", "csrc/moments.h", "shift[i] = centered ? first_guess(x[i], n) : 0;", "shift[i] = centered ? first_guess(x[0], n) : 0;", "batch or bits"),
    Mutation("row: ignore the mask", ROW, "if (a.mask && !a.mask[row]) {\n            blank(row);", "if (false) {\n            blank(row);", f"{AGREES} and layer and masked"),
    Mutation("row: drop the share of the mean in dx", ROW, "if (form.centered) inner = inner - c1[i];", "", f"{AGREES} and layer and float32"),
    Mutation("row: drop the share of the variance in dx", ROW, "Bk d = (inner - xhat * c2[i]) * r[i];", "Bk d = inner * r[i];", f"{AGREES} and rms and float32"),
    Mutation("row: forget what arrives on the stream", ROW, "if (streamed) d = d + load(above[i] + j, count);", "", "residual or Residual", "tests/norms/test_residual_norm.py"),
    Mutation("row: forget the rest of the mean", ROW, "rest[i] = (C)(-(mean[i] - hi[i]) * rstd[i]);", "rest[i] = 0;", "large_mean and layer"),
    Mutation("row: forget the rest of the mean going back", ROW, "rest[i] = (C)(-(mean[i] - hi[i]) * rstd);", "rest[i] = 0;", "large_mean and layer"),
    Mutation("row: no float64 for extreme rows", "csrc/moments.h", "if (!trustworthy<C>(0, s, (double)n, eps)) return scaled_moments(x, n, false);", "", "any_scale and rms"),
    Mutation("row: keep a bad shift", "csrc/moments.h", "return apart <= var;", "return true;", "first_block"),
    Mutation("row: dropout forgets its seed", ROW, "mix((uint32_t)seed ^ mix((uint32_t)row))", "mix(mix((uint32_t)row))", "dropout", "tests/norms/test_residual_norm.py"),
    Mutation("row: alpha lost in dx", ROW, "to.write(dx + j, d * alpha, count);", "to.write(dx + j, d, count);", "residual or Residual", "tests/norms/test_residual_norm.py"),
    Mutation("row: clamped length still projected", ROW, "return rstd == 1.0 / a.eps ? 0.0 : 1.0;", "return 1.0;", "below_eps"),
    Mutation("blocks: forget the last partial one", "csrc/pack.h", "    if (j < width) f(j, width - j);", "", f"{AGREES} and 33"),
    Mutation("blocks: padding lanes enter the sums", "csrc/pack.h", "inline __attribute__((always_inline)) Block<C> keep(Block<C> a, const LaneMask<C>& m, int64_t) { return keep(a, m); }", "inline __attribute__((always_inline)) Block<C> keep(Block<C> a, const LaneMask<C>&, int64_t) { return a; }", f"{AGREES} and layer and 33"),
    Mutation("blocks: bfloat16 truncates", "csrc/pack.h", "return u + 0x7fffu + ((u >> 16) & 1u);", "return u;", f"{AGREES} and bfloat16"),
    Mutation("sums: lose the flush", "csrc/sums.h", "if (held >= flush_rows) flush();", "if (held >= flush_rows) held = 0, memset(current, 0, (size_t)wide * 2 * sizeof(C));", "many_rows"),
    Mutation("sums: the bias gradient of a group is dropped", "csrc/sums.h", "                store(grads, total);\n", "", f"{AGREES} and layer and float32"),
    Mutation("sums: forget the last task", "csrc/sums.h", "for (int64_t t = 1; t < count; ++t)", "for (int64_t t = 1; t < count - 1; ++t)", "many_rows"),
    Mutation("column: drop eps", COLUMN, "rstd[g] = 1.0 / sqrt(var[g] + a.eps);", "rstd[g] = 1.0 / sqrt(var[g]);", f"{AGREES} and instance or single"),
    Mutation("column: drop the gain", COLUMN, "const double factor = rstd[c] * gain[c], constant", "const double factor = rstd[c], constant", f"{AGREES} and batch and float32"),
    Mutation("column: swap mean and mean square", COLUMN, "var[c] = a.centered ? v : v + m * m;", "var[c] = v + m * m;", f"{AGREES} and batch and float32"),
    Mutation("column: mean square of groups", COLUMN, "a.var[set * a.groups + g] = a.centered ? var : var + mean * mean;", "a.var[set * a.groups + g] = var + mean * mean;", f"{AGREES} and group and float32"),
    Mutation("column: ignore the mask in the statistics", COLUMN, "found += mask[r] != 0;", "found += 1;", f"{AGREES} and batch and masked"),
    Mutation("column: leave padding in the output", COLUMN, "if (a.mask && !a.mask[r]) { blank(r); continue; }", "", f"{AGREES} and batch and masked"),
    Mutation("column: cross term of the merge", COLUMN, "m2_j[l] += (double)q[l] - rest * (double)s[l] + delta * delta * cross;", "m2_j[l] += (double)q[l] - rest * (double)s[l];", "many_rows and batch or large_mean and batch"),
    Mutation("column: wrong stride", COLUMN, "p[k] = x + rows.at(i + k) * a.channels;", "p[k] = x + (i + k) * a.channels;", "ordinary_numbers"),
    Mutation("column: drop the share of the mean in dx", COLUMN, "(C)(share_1 * rstd[c] * c1[c])", "(C)(0 * share_1 * rstd[c] * c1[c])", f"{AGREES} and batch and float32"),
    Mutation("column: drop the share of the variance in dx", COLUMN, "(C)(share * rstd[c] * c2[c])", "(C)(0 * share * rstd[c] * c2[c])", f"{AGREES} and batch and float32"),
    Mutation("column: a channel's sums for its group's", COLUMN, "        sum_groups(a, c1);\n        sum_groups(a, c2);\n", "", f"{AGREES} and group and float32"),
    Mutation("column: biased running variance", COLUMN, "a.var[c] * unbiased", "a.var[c]", "running", "tests/norms/test_batch_norm.py"),
    Mutation("column: group boundaries", COLUMN, "const int64_t begin = g * width, end = begin + width;", "const int64_t begin = g * width, end = begin + width - 1;", f"{AGREES} and group and float32"),
    Mutation("column: planes of one sample", COLUMN, "const int64_t offset = (segment * a.channels + channel) * a.rows;", "const int64_t offset = channel * a.rows;", "images"),
    Mutation("pointwise: tanh for erf", POINT, "const Curve c = erf_form ? erf_curve(u.v[i]) : tanh_curve(u.v[i]);", "const Curve c = tanh_curve(u.v[i]);", f"{AGREES} and derf and float32"),
    Mutation("pointwise: slope at one", POINT, "const Bk du = g * load_same(gain + j) * slope;", "const Bk du = g * load_same(gain + j);", f"{AGREES} and dyt and float32"),
    Mutation("pointwise: forget the shift", POINT, "shift(a.shift ? (typename Compute<T>::type)get(a.param_dtype, a.shift, 0) : 0) {}", "shift(0) {}", f"{AGREES} and derf and float32"),
    Mutation("boundary: a parameter of any size", "csrc/arguments.h", 'if (s.size != size) s.refuse("has " + count_of(s.size)', 'if (false) s.refuse("has " + count_of(s.size)', "another_size", FOR_BOUNDARY),
    Mutation("boundary: parameters of two dtypes", "csrc/arguments.h", "if (any && s.dtype != dtype) s.refuse", "if (false) s.refuse", "any_dtype_and_stride", FOR_BOUNDARY),
    Mutation("boundary: running statistics with gaps", "csrc/arguments.h", 'are needed");\n    if (!s.dense()) s.refuse("is not dense");', 'are needed");', "any_dtype_and_stride", FOR_BOUNDARY),
    Mutation("boundary: statistics of any size", "csrc/arguments.h", "if (PyBytes_Size(h.ptr()) != size * (int64_t)sizeof(double))", "if (false)", "whatever_a_hook or statistics_must_fit", FOR_BOUNDARY),
    Mutation("boundary: what is saved may come back shorter", "csrc/arguments.h", "if (!s.shaped(x)) s.refuse", "if (false) s.refuse", "goes_with_x", FOR_BOUNDARY),
    Mutation("boundary: the order in memory of grad", "csrc/bind_columns.cpp", "if (x.shape[d] != 1 && s.strides[d] != x.strides[d])", "if (false)", "another_order", FOR_BOUNDARY),
    Mutation("boundary: storage of no bytes", "csrc/tensors.h", "if (bytes <= 0 || (int64_t)(uintptr_t)s.data == before)", "if (false)", "was_resized or without_memory", FOR_BOUNDARY),
    Mutation("boundary: storage too short", "csrc/tensors.h", "if (bytes < needed)", "if (false)", "resized", FOR_BOUNDARY),
    Mutation("boundary: a mask of any shape", "csrc/tensors.h", "if (!alike)", "if (false)", "another_shape or whatever_a_hook", FOR_BOUNDARY),
    Mutation("boundary: the negative bit", "csrc/tensors.h", "if (read && !s.boolean && is_negated(object))", "if (false)", "negative_bit or conjugate", FOR_BOUNDARY),
    Mutation("boundary: tensors of any class", "csrc/tensors.h", "if (!table_ || !is_plain(object)) refuse_type(s, object);", "", "plain_tensors_alone", FOR_BOUNDARY),
    Mutation("boundary: any tuple is a description", "csrc/tensors.h", "if ((PyObject*)Py_TYPE(object) == description_)", "if (PyTuple_Check(object))", "tuple_of_numbers", FOR_BOUNDARY),
    Mutation("threads: a team of as many as there are tasks", "csrc/tasks.h", "num_threads(threads)", "num_threads((int)(tasks < threads ? tasks : threads))", "start_no_threads", FOR_PROCESS),
    Mutation("memory: what is large is kept", "csrc/dispatch.cpp", "if (own_) free(data_);", "if (own_) {}", "given_back", FOR_PROCESS),
    Mutation("layer: reset leaves alpha", NORM, "            nn.init.constant_(getattr(self, name), value)\n", "            pass\n", "reset_parameters", "tests/norms/test_norms.py"),
    Mutation("layer: reset leaves running statistics", NORM, "        RunningNorm.reset_running_stats(self)  # frozen ones as well\n", "", "reset_parameters", "tests/norms/test_norms.py"),
    Mutation("layer: a recomputed forward moves statistics", "src/normlab/functional", "return not is_compiling() and graph_task_id() != -1", "return False", "checkpointed_layer", FOR_BOUNDARY),
    Mutation("layer: parameters rounded to alpha's dtype", "src/normlab/functional", "alpha, shift, weight, bias = of_one_dtype(alpha, dense(shift), dense(weight), dense(bias))", "weight, bias = (None if p is None else dense(p).to(alpha.dtype) for p in (weight, bias))", "two_dtypes", FOR_BOUNDARY),
    Mutation("layer: torch's update_bn passes over it", NORM, "class BatchNorm(RunningNorm, nn.modules.batchnorm._BatchNorm):", "class BatchNorm(RunningNorm):", "update_bn_gives", "tests/norms/test_norms.py"),
    Mutation("model: Sub-LN norms attention to another stack", PLACE, 'Inside(norm_before_output=("attention", "feedforward"))', 'Inside(norm_before_output=("attention", "cross", "feedforward"))', "sub_ln_excepts", FOR_PLACEMENTS),
    Mutation("files: code runs without trust", "src/normlab/cli", "if code and not args.trust:", "if False:", "code", FOR_FILES),
    Mutation("files: names leave the folder", "src/normlab/runs", 'c if c.isalnum() or c in "._+-" else "_" for c in text', "c for c in text", "never_leave", FOR_FILES),
    Mutation("files: a pipe is opened and read", "src/normlab/runs", "    if not stat.S_ISREG(status.st_mode):\n", "    if False:\n", "keeps_a_reader", FOR_FILES),
    Mutation("files: any depth of nesting", "src/normlab/runs", "if kind in (dict, list) and depth == 0:", "if False:", "nesting_is_bounded", FOR_FILES),
    Mutation("files: escape sequences act", "src/normlab/cli", 'c if c.isprintable() or c in "\\n\\t" else ascii(c)[1:-1] for c in str(text)', "c for c in str(text)", "text_does_nothing or markup", FOR_FILES),
    Mutation("files: Infinity in JSON", "src/normlab/lab", "if isinstance(v, float) and not math.isfinite(v)})", "if False})", "strict_json", FOR_FILES),
    Mutation("files: a factory moves the run", "src/normlab/lab/train.py", "folder = Path(folder).absolute()", "folder = Path(folder)", "working_folder", FOR_FILES),
    Mutation("files: a structure of any form", "src/normlab/runs", ', "structure": if_object(STRUCTURE)', "", "structure_of_another_form", FOR_FILES),
    Mutation("files: an axis repeats its values", "src/normlab/runs", "    for name, values in found.items():\n        check_distinct(name, values)\n", "", "repeats_its_values", FOR_FILES),
    Mutation("reference: drop eps", KERNEL, "xhat = (x - mean) * torch.rsqrt(square + eps)", "xhat = (x - mean) * torch.rsqrt(square)", "against_torch", "tests/kernels/test_reference.py"),
    Mutation("reference: padding leaks", KERNEL, "        x = torch.where(mask, x, 0)\n    count = total(count)", "        pass\n    count = total(count)", "masked", "tests/kernels/test_reference.py"),
    Mutation("layer: offset gain as direct", NORM, 'RowFacts("layer", eps, width, width, self.gain == "offset", self.round_before_gain)', 'RowFacts("layer", eps, width, width, False, self.round_before_gain)', "offset", "tests/norms/test_norms.py"),
    Mutation("power: batch psi after warm-up", KERNEL, "used = torch.where(warm, batch, psi2.to(batch.dtype).view_as(batch))", "used = batch", "Power or power", "tests/norms/test_power_norm.py"),
    Mutation("placement: alpha lost in the unfused sum", PLACE, "stream = branch + (x if self.alpha == 1 else self.alpha * x)", "stream = branch + x", "deepnorm", FOR_PLACEMENTS),
    Mutation("placement: final norm forgotten", PLACE, "return x.normalized(self.norm, mask)[1] if isinstance(x, Pending) else apply_norm(self.norm, x, mask)", "return settled(x)", "pre", FOR_PLACEMENTS),
    Mutation("placement: norms get no mask", PLACE, "        return norm(x, mask=mask)\n", "        return norm(x)\n", "padding", FOR_PLACEMENTS),
    Mutation("placement: decoder's alpha by the encoder's rule", PLACE, "return (3 * num_layers) ** 0.25, (12 * num_layers) ** -0.25", "return (2 * num_layers) ** 0.25, (8 * num_layers) ** -0.25", "deepnorm", FOR_DEPTHS),
    Mutation("placement: beta inverted", PLACE, "return (2 * num_layers) ** 0.25, (8 * num_layers) ** -0.25", "return (2 * num_layers) ** 0.25, (8 * num_layers) ** 0.25", "deepnorm", FOR_DEPTHS),
    Mutation("placement: layer scaling off by one", PLACE, "1 / math.sqrt(self.slot.layer + 1)", "1 / math.sqrt(self.slot.layer + 2)", "scaling", FOR_PLACEMENTS),
    Mutation("placement: bridge left out", PLACE, "return self.bridge(self.residual(stream, branch), bottom, self.norm, mask)[1]", "return self.residual(stream, branch, self.norm, mask)[1]", "b2t", FOR_PLACEMENTS),
    Mutation("model: rotary positions turn the wrong way", MODEL, "torch.cat((-high, low), -1)", "torch.cat((high, -low), -1)", "llama", FOR_MODELS),
    Mutation("model: decoder sees the future", MODEL, "            return None, True\n", "            return None, False\n", "decoder", FOR_MODELS),
    Mutation("model: the cache overwrites its start", MODEL, "held[:, :, self.length : end] = new", "held[:, :, : new.shape[2]] = new", "cache", FOR_CACHE),
    Mutation("model: positions start anew with a cache", MODEL, "return x + table[start : start + x.shape[1]].to(x.dtype)", "return x + table[: x.shape[1]].to(x.dtype)", "cache", FOR_CACHE),
    Mutation("model: padding is attended to", MODEL, "            return _visible(mask), False\n", "            return None, False\n", "padding", FOR_PADDING),
    Mutation("norm: position statistics over the whole batch", NORM, "y = functional.instance_norm(x.transpose(0, 1), weight=self.weight, bias=self.bias, eps=self.eps, gain=self.gain,\n                                  mask=None if mask is None else mask.T).transpose(0, 1)", "y = functional.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps, gain=self.gain, mask=mask)", "position", "tests/norms/test_causal_norms.py"),
    Mutation("leaks: nothing ever moves", "src/normlab/leaks.py", "(change > tolerance)", "(change > 1e9)", "leak", "tests/leaks/test_leaks.py"),
    Mutation("probe: gradient through the mean left out", SEEN, "through_mean = -g.mean(axis, keepdim=True) if centered", "through_mean = 0 * g.mean(axis, keepdim=True) if centered", "terms", FOR_PROBES),
    Mutation("probe: padding counts", SEEN, "return rows if self.mask is None else rows[self.mask.flatten()]", "return rows", "padding or terms", FOR_PROBES),
    Mutation("watch: fused norms are missed", SEEN, "            self._see_norm(site, output[0], output[1])\n", "            pass\n", "every_norm_of_every_placement", FOR_WATCH),
    Mutation("watch: gradients read before the closure", SEEN, "        if closure is None:\n", "        if True:\n", "closure", FOR_LOOPS),
    Mutation("watch: recomputation counts", SEEN, "return graph_task_id() != -1", "return False", "checkpointing", FOR_LOOPS),
    Mutation("watch: hooks stay where nothing is trained", SEEN, "            self._detach()  # until the next forward that trains\n", "", "nothing_hangs", FOR_MANNERS),
    Mutation("watch: a failing hook raises", SEEN, "                self.failed(what, error)\n                return None\n", "                raise\n", "failing_hook", FOR_MANNERS),
    Mutation("watch: the dropout of an open sum is left out", SEEN, "return residual.dropout > 0 and residual.training", "return False", "fused_stack", FOR_LAYOUTS),
    Mutation("watch: what is added to scores is left out", SEEN, "        if frame.bias is not None:\n", "        if False:\n", "added_to_them", FOR_LAYOUTS),
    Mutation("watch: masks lie batch-first", SEEN, "            self._told_last = self._told[site] = next(iter(ways))\n            return next(iter(ways.values())), None\n        if ways:\n            return self._one_of(ways, ", "            pass\n        if ways:\n            return self._one_of({True: mask}, ", "either_layout or embedding_is_given", FOR_LAYOUTS),
    Mutation("budget: no end to the credit", SEEN, "left(LONG, self._share)", "left(OPENING, 1.0)", "thousand", FOR_BUDGET),
    Mutation("budget: no lean recordings", SEEN, "            return LEAN\n", "            return None\n", "lean", FOR_BUDGET),
    Mutation("budget: nothing kept back", SEEN, "RESERVE = 0.1", "RESERVE = 0.0", "hooks_cannot_count", FOR_BUDGET),
    Mutation("reference: detached statistics flow", KERNEL, "source = c.detach() if detach_statistics else c", "source = c", "autograd", "tests/norms/test_detached.py"),
    Mutation("placement: a detached norm is fused", PLACE, "norm.detach_statistics or has_hooks", "has_hooks", "never_fuse", "tests/norms/test_detached.py"),
    Mutation("norm: noise in evaluation", NORM, "        if not self.training:\n            return y\n        if not functional", "        if not functional", "evaluation", "tests/norms/test_noisy.py"),
    Mutation("model: all norms share their noise", MODEL, "noisy.stream = stream", "noisy.stream = 0", "norms_differ", "tests/norms/test_noisy.py"),
    Mutation("probe: the gain left out of the statistics' gradients", SEEN, "frame.grad_rows if gain is None else frame.grad_rows * gain", "frame.grad_rows", "mean_and_variance", "tests/watch/test_statistics_flow.py"),
    Mutation("probe: the identity of one block alone", SEEN, "        if frame.site.depth == 0:\n", "        if True:\n", "identity", "tests/watch/test_statistics_flow.py"),
    Mutation("watch: assays count as training", SEEN, "watch.hooks.active, False", "watch.hooks.active, watch.hooks.active", "suspended", FOR_ASSAYS),
    Mutation("assays: the layer itself moves", "src/normlab/assays", "if used[p] < start and", "if used[p] <= start and", "definition", "tests/assays/test_steps_asked.py"),
    Mutation("assays: buffers stay as they were left", "src/normlab/assays", "[*stepped, *model.buffers()]", "[*stepped]", "as_they_came", "tests/assays/test_steps_asked.py"),
    Mutation("assays: the block is not left out", "src/normlab/assays", "return with_stream(output, given(args, kwargs), block.name)", "return output", "left_out", FOR_ASSAYS),
    Mutation("assays: the second block sees the first", "src/normlab/assays", "            second.module.register_forward_pre_hook(same_input, with_kwargs=True),\n", "", "side_by_side", FOR_ASSAYS),
    Mutation("assays: dropout with batch statistics", "src/normlab/assays", "            model.eval()\n            for norm", "            model.train()\n            for norm", "both_kinds", FOR_ASSAYS),
    Mutation("assays: a probe judged on what it was fitted to", "src/normlab/assays", "judged, fitted = order[: count // 2], order[count // 2 :]", "judged, fitted = order, order", "position", "tests/assays/test_states_asked.py"),
    Mutation("answer: matched at the lowest loss of any run", ANSWER, "level = max(min(", "level = min(min(", "fit_their_data", "tests/answer/test_matched.py"),
    Mutation("model: padding moves the recurrent state", MODEL, "new_c, new_h = torch.where(cell, new_c, c), torch.where(cell, new_h, h)", "pass", "padding", "tests/models/test_without_stream.py"),
    Mutation("model: norm and activation always in one order", MODEL, 'self.first = config.placement == "pre"', "self.first = True", "order_of_the_placement", "tests/models/test_without_stream.py"),
    Mutation("runs: a torn line is continued", "src/normlab/runs", "            whole.truncate(keep)", "            pass", "torn", "tests/runs/test_runs.py"),
    Mutation("lab: random numbers not put back", TRAINER, 'torch.set_rng_state(tensors["random"])', "pass", "stopped_and_resumed", FOR_RESUMED),
    Mutation("lab: micro-batches weigh the same", TRAINER, "processes * count / total", "processes / len(pieces)", "shares_sum", FOR_TRAINER),
    Mutation("lab: weight decay on gains", TRAINER, "p.requires_grad and p.dim() >= 2", "p.requires_grad", "matrices_only", FOR_TRAINER),
    Mutation("lab: any finite loss has trained", TRAINER, "if loss >= limit:", "if False:", "told_apart", FOR_TRAINER),
    Mutation("lab: evaluation in training mode", TRAINER, "    if not keep_mode:\n        model.eval()\n", "", "evaluation_is_a_ratio", FOR_TRAINER),
    Mutation("lab: losses after the checkpoint stay", TRAINER, "again=True, after=self.step", "again=True", "killed_twice and dropout", FOR_RESUMED),
    Mutation("lab: batches forget the step", TASKS, 'generator_of("text", seed, step)', 'generator_of("text", seed)', "text", FOR_TASKS),
    Mutation("lab: windows reach into held-out bytes", TASKS, "ends = torch.tensor([end - length for _, end in stretches])", "ends = torch.tensor([end for _, end in stretches])", "touches_a_held_out", "tests/lab/test_texts.py"),
    Mutation("lab: a loader shares dropout's numbers", TASKS, "        with self._own_random(seed):\n", "        if True:\n", "shuffling_loader", "tests/lab/test_own_data.py"),
    Mutation("answer: seeds not paired", "src/normlab/intervals", "self.values[a][s] - self.values[b][s] for s in sorted(self.values[a].keys() & self.values[b].keys())", "x - y for x, y in zip(self.values[a].values(), list(self.values[b].values())[::-1])", "pairing_decides or paired_one", FOR_DECISIONS),
    Mutation("answer: each pair for itself", "src/normlab/intervals", "        return max(together, t_quantile((1 + self.level) / 2, n - 1) * math.sqrt(own / n))", "        return t_quantile((1 + self.level) / 2, n - 1) * math.sqrt(own / n)", "clear_effect or tukeys", "tests/intervals/test_simultaneous.py"),
    Mutation("answer: a noisy arm decided on the others' word", "src/normlab/intervals", "        return max(together, t_quantile((1 + self.level) / 2, n - 1) * math.sqrt(own / n))", "        return together", "same_procedure", "tests/intervals/test_simultaneous.py"),
    Mutation("answer: variances below zero", "src/normlab/intervals", "fitted = max(0.0, sum(", "fitted = max(-1e9, sum(", "none_below_zero", "tests/intervals/test_simultaneous.py"),
    Mutation("report: blocks add along the stream", "src/normlab/report", "math.hypot(low[-1], share * size)", "low[-1] + share * size", "where_its_blocks_point", "tests/report/test_theory.py"),
    Mutation("report: the path of deepnorm is post-norm's", "src/normlab/report", "product *= factor / math.hypot(factor, 1.0)", "product *= 0.5**0.5", "identity_path", "tests/report/test_theory.py"),
    Mutation("report: a time of nothing", "src/normlab/report", "and v > 0}", "and v >= 0}", "file_that_is_anything", "tests/report/test_kernels_page.py"),
    Mutation("report: every interval is drawn to the same digits", "src/normlab/report", '"decimals": of.decimals}\n    return', '"decimals": 2}\n    return', "digits_shown", "tests/report/test_report.py"),
    Mutation("serve: a request may take for ever", SERVE, "if self.cycle is None or self.cycle.response_complete:\n            self.transport.abort()", "pass", "slow_and_dead", FOR_SERVER),
    Mutation("serve: a reader may stand still for ever", SERVE, "self.loop.call_later(PATIENCE, self.transport.abort)", "self.loop.call_later(9999, self.transport.abort)", "slow_and_dead", FOR_SERVER),
    Mutation("serve: the server does not end", SERVE, "self.should_exit = self.force_exit = True", "self.should_exit = not sig", "a_new_run_is_told", FOR_SERVER),
    Mutation("serve: links are followed", SERVE, "if entry.is_dir(follow_symlinks=False):", "if entry.is_dir():", "links_out_of_the_folder", FOR_SERVER),
    Mutation("serve: a file cut short is not told", SERVE, 'if found.anew:\n            return event("anew", {}, str(found.end)), found.end', 'if found.anew:\n            return b"", found.end', "torn_ones", FOR_SERVER),
    Mutation("serve: half a line is a line", "src/normlab/runs/tail.py", "at += len(line) + 1", "at = since.byte + len(data)", "torn_ones", FOR_SERVER),
    Mutation("serve: lines of a file that is gone", SERVE, "key = (folder, since, end)", "key = (folder, since, ())", "written_anew", FOR_SERVER),
    Mutation("serve: what changed before the stream is missed", SERVE, "if seen.began >= begun and seen.stamp != known:", "if known is None:\n                known = seen.stamp\n            elif seen.stamp != known:", "before_the_stream", FOR_SERVER),
    Mutation("serve: a run that ended before the stream is missed", SERVE, "about: Stamp | None = None", "about: Stamp | None = stamp(folder / INFO)", "before_the_stream", FOR_SERVER),
    Mutation("answer: one sentence each", ANSWER, "if fits(both):", "if False:", "few_sentences", "tests/answer/test_real_verdict.py"),
    Mutation("looks: a second look at half", "src/normlab/runs", "0.5 ** (len(self.looks) + 1)", "0.5 ** len(self.looks)", "full_first_look", "tests/lab/test_growth.py"),
    Mutation("answer: tied whatever is decided", ANSWER, "and not (behind is not None and behind.decided)", "and behind is not None", "ten_deviations_are_never", FOR_DECISIONS),
    Mutation("answer: the lowest mean is the best", ANSWER, "if not any(better(other, name) for other in ranked if other != name):", "if True:", "not_sold_as_a_lead", FOR_DECISIONS),
    Mutation("answer: a rate chosen on all seeds", ANSWER, "for s in seeds if s != seed", "for s in seeds", "cross_fitted", FOR_DECISIONS),
    Mutation("answer: half of the gain is enough of a loss", ANSWER, "start - loss < LEAST_KEPT * (start - best)", "start - loss < 0", "half_of_the_gain", FOR_DECISIONS),
    Mutation("answer: averages over cells that are not there", ANSWER, "if row.keys() == values]", "]", "whole_part", FOR_DECISIONS),
    Mutation("answer: survivors of a diverged rate count", ANSWER, "if not any(t.outcome in NO_BEST for t in trials.values()):", "if True:", "further_seed", FOR_STAGES),
    Mutation("stages: the rate is chosen on all seeds", ANSWER, "if s in first and t.outcome", "if t.outcome", "best_rate_is_the_answers", FOR_STAGES),
    Mutation("stages: hopeless rates get every seed", ANSWER, "kept = [lr for lr in rates if lr not in without]", "kept = list(rates)", "gets_no_other", FOR_STAGES),
    Mutation("stages: further seeds for every rate", ANSWER, "due += [(best, seed) for seed in further]", "due += [(lr, seed) for lr in kept for seed in further]", "upper_bound", FOR_STAGES),
    Mutation("stages: a rate that breaks later stays", ANSWER, "        del known[best]\n", "        break\n", "gives_way", FOR_STAGES),
    Mutation("looks: every look at the full level", ANSWER, "1 - share * (1 - LEVEL)", "LEVEL", "share", "tests/answer/test_planted_looks.py"),
    Mutation("growth: looks are forgotten", TRAINER, "        looks += (count,)\n", "        pass\n", "grows_by_seeds", "tests/lab/test_growth.py"),
    Mutation("growth: a new rate chosen on the further seeds too", TRAINER, "        first = count\n", "        first = None\n", "grows_by_seeds", "tests/lab/test_growth.py"),
]  # fmt: skip


def place(mutation: Mutation, root: Path = ROOT) -> Path | None:
    """The file to change. A mutation names a file or a room: then the text must stand in one file of it alone."""
    named = root / mutation.file
    kinds = ("**/*.py", "*.h", "*.cpp")  # of C++ without csrc/tests
    files = sorted(f for kind in kinds for f in named.glob(kind)) if named.is_dir() else [named]
    found = [file for file in files if mutation.old in file.read_text()]
    return found[0] if len(found) == 1 else None


def applicable(mutation: Mutation) -> bool:
    """The text to change is there, and only where it is meant (twice for the two forms of a row)."""
    file = place(mutation)
    return file is not None and file.read_text().count(mutation.old) <= 2


def copy_tree(to: Path) -> None:
    for name in ("csrc", "src", "tests", "benchmarks", "CMakeLists.txt", "pyproject.toml"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", ".hypothesis"))
        else:
            shutil.copy(source, to / name)


def build(tree: Path) -> None:
    folder = tree / "build"
    # One instruction set is quicker to build; with FMA where there is one, because torch uses it, too. What a mutation breaks
    # shows at any optimization.
    flags = "-mavx2 -mfma -mf16c" if dict(cpu.native.isas()).get("avx2") else ""
    configure = ["cmake", "-S", str(tree), "-B", str(folder), f"-DPython_EXECUTABLE={sys.executable}",
                 "-DNORMLAB_ISAS=baseline", "-DNORMLAB_OPTIMIZE=-O1", f"-DCMAKE_CXX_FLAGS={flags}"]  # fmt: skip
    for command in (configure, ["cmake", "--build", str(folder), "--parallel", "2"]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stdout[-3000:] + done.stderr[-3000:])
    (module,) = folder.glob("_native*")
    shutil.copy(module, tree / "src" / "normlab" / "kernels" / module.name)


# The installed package redirects imports to the checkout; the drill wants the mutated copy, also in processes that tests start.
SITE = """
import sys
sys.meta_path = [f for f in sys.meta_path if "Redirecting" not in type(f).__name__]
sys.path.insert(0, {source!r})
"""
RUN = """
import sys
import pytest
import normlab
assert normlab.__file__.startswith(sys.argv[1]), normlab.__file__
raise SystemExit(pytest.main(["-q", "-x", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", sys.argv[2], "-k", sys.argv[3]]))
"""


def run_tests(tree: Path, module: str, expression: str) -> tuple[int, str]:
    command = [sys.executable, "-c", RUN, str(tree / "src"), str(tree / module), expression]
    site = tree / "site" / "sitecustomize.py"  # Python imports it at every start
    site.parent.mkdir(exist_ok=True)
    site.write_text(SITE.format(source=str(tree / "src")))
    paths = os.pathsep.join(filter(None, [str(site.parent), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(command, capture_output=True, text=True, cwd=tree, env={**os.environ, "PYTHONPATH": paths})
    return done.returncode, (done.stdout + done.stderr)[-2000:]


def drill(mutations: list[Mutation]) -> int:
    survivors, began = [], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_tree(tree)
        native = any(m.native for m in mutations)
        if native:
            build(tree)
            print(f"built in {time.monotonic() - began:.0f} s", flush=True)
        else:
            shutil.copy(EXTENSION, tree / "src" / "normlab" / "kernels")
        expressions: dict[str, dict[str, None]] = {}
        for m in mutations:
            expressions.setdefault(m.module, {})[m.tests] = None
        for module, used in expressions.items():
            code, output = run_tests(tree, module, " or ".join(f"({e})" for e in used))
            if code != 0:
                print(f"not green before any mutation (exit {code}): {module}\n{output}")
                return 2
        print(f"all tests used are green without a mutation, {time.monotonic() - began:.0f} s", flush=True)
        # C++ first, and what was built with the last of them is built anew: then mutations of Python need no build at all.
        for number, mutation in enumerate(sorted(mutations, key=lambda m: not m.native), 1):
            started = time.monotonic()
            path = place(mutation, tree)
            assert path is not None, mutation.name
            before = path.read_text()
            if native and not mutation.native:
                build(tree)
                native = False
            path.write_text(before.replace(mutation.old, mutation.new))
            try:
                if native:
                    build(tree)  # also undoes the mutation before
                code, output = run_tests(tree, mutation.module, mutation.tests)
            finally:
                path.write_text(before)
            red = code == 1 or code < 0  # below 0: ended by a signal, as a read beyond the end may
            if not red:
                survivors.append(mutation.name)
            print(f"{number}/{len(mutations)} {'red ' if red else 'SURVIVED'} {mutation.name} ({time.monotonic() - started:.0f} s)",
                  flush=True)  # fmt: skip
            if code > 1:
                print(f"  pytest ended with {code}: {output[-500:]}")
    print(
        f"{len(mutations) - len(survivors)} of {len(mutations)} mutations turned a test red, {time.monotonic() - began:.0f} s"
    )
    for name in survivors:
        print(f"  survived: {name}")
    return 1 if survivors else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only mutations whose name contains one of these")
    parser.add_argument("--list", action="store_true", help="list the mutations and whether they still apply")
    parser.add_argument(
        "--only", choices=("native", "python"), help="only mutations of C++, or of Python, which need no build"
    )
    args = parser.parse_args()
    chosen = [m for m in MUTATIONS if not args.words or any(w in m.name for w in args.words)]
    chosen = [m for m in chosen if args.only in (None, "native" if m.native else "python")]
    if args.list:
        for m in chosen:
            print(f"{'applies' if applicable(m) else 'STALE  '} {m.name}: {m.file}")
        return 0
    stale = [m.name for m in chosen if not applicable(m)]
    if stale:
        print(f"the text to mutate is gone, mend the drill: {stale}")
        return 2
    return drill(chosen)


if __name__ == "__main__":
    raise SystemExit(main())
