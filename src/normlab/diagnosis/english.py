"""What a diagnosis says, in English. Keys: a rule, a rule with its case, what follows a dot gives reasons, ``try/`` advice."""

TEXTS: dict[str, str] = {
    # ---- the frame
    "why": "why", "try": "try", "evidence": "evidence", "whole-model": "the whole model", "colon": ": ", "stop": ".",
    "critical": "critical", "warning": "warning", "note": "note",
    "step": "step {first}", "steps": "steps {first} to {last}",
    "looked": "{name}: {steps} steps, {recorded} of them recorded, {quantities} quantities. ",
    "few": " Most rules need {few} recorded steps.", "none": "No finding.",
    "blind": " Could not look: ", "blind-some": "{rules} ({readings} of {needed} readings)", "semicolon": "; ",
    "change": " To change that: ", "change-steps": "more steps",
    "change-overhead": "watch(max_overhead=None) in place of {limit} ({held} due steps were held back, {lean} were lean)",
    "change-every": "watch(every={less}) or less in place of {every}",
    "count-critical-one": "{count} critical", "count-critical-many": "{count} critical",
    "count-warning-one": "{count} warning", "count-warning-many": "{count} warnings",
    "count-note-one": "{count} note", "count-note-many": "{count} notes",
    "comma": ", ", "brings": " It brings with it: {rules}.",
    "others": " Other sites like it: {count}.", "at": " at {site}", "went": " {name} went from {before} to {after}.",
    # ---- values
    "nonfinite/sudden": "A value that is not finite appeared at step {step}, first {where}.",
    "nonfinite/grown": "A value that is not finite appeared at step {step}; it began {where}.",
    "nonfinite.inside": "in {site}", "nonfinite.outside": "outside the blocks: in the embedding, the head or the loss",
    "nonfinite.why": "Nothing after it can be used.",
    "nonfinite.grown": " {site} was the first to leave its usual size: its largest value, {before} before, was {after} at step {first}.",
    "nonfinite.sudden": " Nothing had grown before it: {size} at most (in {site}) since step {first}.",
    "leak": "Earlier outputs depend on later tokens: the loss of this causal model is too good to be true.",
    "leak.why": "Changing tokens{cut} moved {count} earlier outputs{change}{mode}. Cuts that leak: {cuts}.",
    "leak.cut": " after position {cut}", "leak.change": ", by up to {size} of the largest output", "leak.mode": " in {mode} mode",
    "gain-explosion/jumped": "The gain of a norm jumped between steps {at} and {step}.",
    "gain-explosion/grew": "The gain of a norm has become very large.",
    "gain-explosion.jumped": "Its largest factor went from {before} to {after}.",
    "gain-explosion.more": " Norms that jump with it or later: {count}.",
    "gain-explosion.grew": "Its largest factor is {size}; it started at {start}.",
    "dead-gain/died": "The gain of a norm has gone to zero: nothing passes through it.",
    "dead-gain/unborn": "The gain of a norm began at zero and gets no gradient: its branch will never take part.",
    "dead-gain.died": "The rms of its factors is {size}; at first it was {start}.",
    "dead-gain.unborn": "The rms of its factors is {size} and has not changed up to step {last}; its gradient is exactly zero.",
    # ---- set-up
    "stuck-weights": "The weights are held in 16 bits and hardly move: the optimizer's steps are rounded away.",
    "stuck-weights.why": "{share} of the weights that had a gradient came out of a step as they went in. Neighbouring numbers in {kind} "
                         "lie {spacing} apart or more; a change below half of that is lost.",
    "stale-gradient": "The gradients hold those of earlier steps: nothing clears them.",
    "stale-gradient.why": "{share} of the gradient that the optimizer used was not brought by the backward passes since its last step.",
    "eps-swallows": "The eps of a norm is larger than the variance of what it gets: it no longer normalizes.",
    "eps-swallows.why": "eps makes up {share} of the denominator's square; what leaves the norm has {left} of the size it should have.",
    "large-initialization/block": "The matrices of a block start far too large.",
    "large-initialization/layer": "The matrix of a linear layer starts far too large.",
    "large-initialization.why": "It makes what goes through it about {size} times as large at the start; 0.1 to 1.4 times is usual.",
    "large-initialization.loss": " The first loss was {loss}.",
    "constant-answer": "The model trains normally and gives every input the same answer: the targets seem to say nothing about the inputs.",
    "constant-answer.why": "Answers differ from input to input by {size} logits; at first by {start}. The loss was {middle} in the second "
                           "third and {late} in the last: that of a guess from frequencies alone.",
    # ---- the loss
    "loss-divergence": "The loss rose again and stayed up: the learning rate is beyond what this model holds.",
    "loss-divergence.why": "The loss started at {start}, was {low} at steps {first} to {last}, ends at {end}.",
    "learning-rate-high/stalled": "The learning rate is beyond the stable range: single steps rewrote the weights, and the loss has stalled.",
    "learning-rate-high/grown": "The learning rate is beyond the stable range: single steps rewrote the weights, and the stream has grown.",
    "learning-rate-high.why": "One step changed a block by up to {size} of its length, {count} recorded steps by more than {limit}, the last "
                              "of them step {last}; 0.001 to 0.01 is usual. The loss was {middle} in the second third and {late} in the last.",
    "learning-rate-high.peak": " The learning rate peaked at {rate}.",
    "learning-rate-low": "The learning rate is far below the useful range: the model hardly moves.",
    "learning-rate-low.why": "A step changes a block by at most {size} of its length; about 0.001 is usual. Over {count} steps the loss went "
                             "from {first} to {late}, less than its noise of {noise}.",
    "loss-spike": "The loss jumped at step {step}.",
    "loss-spike.why": "It was {top} after a median of {usual}; {noise} is its usual change per step.",
    "loss-spike.before": " First to jump was {quantity}{where}: from {before} to {after} at step {first}, {steps} steps before.",
    "loss-spike.same": " First to jump was {quantity}{where}: from {before} to {after} at step {first}, in the same step.",
    "loss-spike.alone": " None of the recorded quantities jumped before it.",
    "loss-spike.up": " It has not come back.", "loss-spike.back": " It was back by step {step}.",
    # ---- depth
    "gradient.why": "{quantity} is {low} in {lowest} and {high} in {highest}, a ratio of {ratio} in the last third of the run.",
    "gradient.above": " Above {limit} is out of proportion.", "gradient.below": " Below {limit} is out of proportion.",
    "exploding-gradient": "The gradient grows on its way down: the lower blocks get far more than the upper ones.",
    "vanishing-gradient": "The gradient dies on its way down: the lower blocks do not learn.",
    "token-collapse": "All tokens look the same in the upper part of the model, and the loss has stalled.",
    "token-collapse.why": "The mean cosine between different tokens is at least {least} (1 is the largest possible) in the {count} norms from "
                          "{site} on. The loss was {middle} in the second third and {late} in the last.",
    "stream-growth": "The residual stream has grown far beyond what the norms expect.",
    "stream-growth.why": "Its rms after {last} is {size}; at step {step} it was {start}. After {first} it is {low}. Pre-norm starts "
                         "within {bound}.",
    "missing-final-norm": "Norms sit inside the blocks and none follows the last: the head reads a stream that nothing holds.",
    "missing-final-norm.why": "The stream's rms after {last} is {size}, {growth} times that after {first}; at the start it was {start} "
                              "times. No norm is called after {norm}.",
    "dead-upper-blocks": "The upper blocks do almost nothing: about {depth} of {count} blocks turn the stream.",
    "dead-upper-blocks.why": "From {half} on a block turns a token by {degrees} degrees ({start} at the start), {share} of the first block's "
                             "angle; 0.2 and more is usual.",
    # ---- statistics over tokens, attention
    "padding-contamination": "A BatchNorm counts padding in its statistics.",
    "padding-contamination.why": "{share} of the cells are padding.",
    "padding-contamination.mean": " The norm's running mean lies {size} deviations off the mean of the real cells; all cells together lie "
                                  "{usual} off their average.",
    "padding-contamination.var": " The norm's running deviation lies {size} of it off the deviation of the real cells; that of all cells "
                                 "together lies {usual} off its average.",
    "unstable-batch-statistics": "The statistics of a batch differ too much from their running average.",
    "unstable-batch-statistics/would": "BatchNorm would see unsteady statistics here: keep a norm that looks at one token.",
    "unstable-batch-statistics.why": "{quantity} is {size} at {site}. {count} norms are above {mean} (means, in deviations) or {var} "
                                     "(deviations, relative); 0.1 is usual.",
    "train-inference-gap": "With its running statistics this norm gives another output than in training: expect evaluation to be worse.",
    "train-inference-gap.why": "The outputs differ by {size} of their size; about 10 % is usual.",
    "attention-logit-growth": "Attention logits are large: attention collapses onto single tokens.",
    "attention-logit-growth.why": "The largest logit is {size}; at first it was {start}.",
    "attention-logit-growth.entropy": " The entropy of attention is {size} of the largest possible.",
    # ---- advice
    "try/look": "look at the batch of that step, and at whatever writes to {site}: nothing in training led up to it",
    "try/look-grown": "look at what changed {site} just before: model.get_submodule({site!r}) and the batch of that step",
    "try/slower": "{optimizer} with lr={lower} in place of {rate}, or a warm-up over the first hundreds of steps",
    "try/sixteen": "in float16: torch.amp.GradScaler, given to watch(scaler=) as well; or bfloat16, whose range is float32's",
    "try/leak-norm": 'a norm that looks at one token in place of {site}, which is of kind {kind}: nn.LayerNorm or nn.RMSNorm (norm="layer" or '
                     '"rms"; or causal_statistics="position" or "running" to keep it). Expect a higher and true loss',
    "try/leak-attention": "hide later tokens in {site}: F.scaled_dot_product_attention(q, k, v, is_causal=True), "
                          "nn.Transformer.generate_square_subsequent_mask(length) as mask of torch's layers; with normlab "
                          'architecture="decoder". Expect a higher and true loss',
    "try/clear": "{optimizer}.zero_grad() before each backward pass, once per step: the gradient's length then stays level instead of growing "
                 "with the number of steps",
    "try/master": "hold the weights in float32 and compute in {kind}: model.float(), then torch.autocast(device_type, torch.bfloat16) around "
                  "the forward; all weights move then",
    "try/stuck-rate": "a larger lr than {rate}, if the weights must stay in {kind}: a step must exceed half a spacing of the weight",
    "try/eps": "a smaller eps for {site}: it is {times} times the variance there; {layer}(width, eps=1e-5), in normlab "
               'norm_options={{"eps": 1e-5}}. The output should grow to a size of about 1',
    "try/eps-scale": "if the input is meant to be that small: scale it up in front of {site}, for example the embedding by sqrt(width)",
    "try/draw-block": "draw the matrices of {site} with a deviation about {times} times smaller: nn.init.normal_(weight, std=width ** -0.5) or "
                      "nn.init.xavier_uniform_(weight), and those that write to the stream smaller by sqrt(2 layers)",
    "try/draw-layer": "draw {site} with a deviation about {times} times smaller: nn.init.normal_({site}.weight, std=width ** -0.5); the first "
                      "loss should be near log(number of classes)",
    "try/tie": "if it shares its weight with nn.Embedding, whose own deviation is 1: draw the embedding so, and scale it up where it is read",
    "try/pairs": "check that targets belong to their inputs: shuffled once too often, shifted by the wrong number, a collate function that sorts one of the two",
    "try/one-batch": "train on one fixed batch: a sound model with targets that can be known drives its loss to 0 within some hundred steps",
    "try/longer": "if the data are right: more steps at {optimizer} lr={rate} (a plateau looks like this as well), or a larger model",
    "try/lower": "{optimizer} with lr={lower} in place of {rate}",
    "try/lower-plain": "{optimizer} with lr={lower} in place of {rate}",
    "try/rate-high": "{optimizer} with lr={lower} in place of {rate}, about {times} times lower: steps of 0.01 of a block's length",
    "try/rate-low": "{optimizer} with lr={higher} in place of {rate}, about {times} times higher: steps of 0.001 of a block's length",
    "try/schedule": "a look at the schedule: has it left its warm-up?",
    "try/warm": "warm-up: torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=200)",
    "try/warm-deep": "warm-up over more steps: post-norm needs it from about 8 layers on, and from 12 it may not be enough (here: {layers})",
    "try/clip": "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) before the optimizer's step",
    "try/clip-hides": "gradient clipping hides it and does not cure it",
    "try/qk": 'norms on queries and keys (qk_norm="head"; in torch an nn.RMSNorm over the width of a head): max_logit grew',
    "try/qk-always": 'norms on queries and keys of {site} (qk_norm="head", placement "hybrid-norm"; in torch an nn.RMSNorm over the width of a '
                     "head): logits then stay below sqrt(width of a head) times the gains",
    "try/beta2": "a lower beta2: betas=(0.9, 0.95)",
    "try/look-batch": "a look at the batch of step {step}",
    "try/placement-divergence": "another placement than {placement}: {options}",
    "try/placement-exploding": "another placement than {placement}: {options}; the ratio should come down to between 1 and 4",
    "try/placement-vanishing": "another placement than {placement}: {options}; the ratio should come up to between 0.3 and 4",
    "try/placement-collapse": "another placement than {placement}: {options}, which keep the input in the stream",
    "try/placement-growth": "another placement than {placement}: {options}, which slow the growth or have none",
    "try/placement-dead": "another placement than {placement}: {options}",
    "try/norm-first": "in torch's layers norm_first=True, and norm=nn.LayerNorm(width) for the stack",
    "try/fewer": "fewer layers: the upper {spare} cost and do not pay",
    "try/final-norm": "a norm after {site}, before the head: {layer}(width), in torch's stack norm={layer}(width), in normlab "
                      "final_norm=True. What the head reads then has a size of about 1 in place of {size}",
    "try/mask": "statistics of real cells alone at {site}: normlab.BatchNorm takes the mask (norm=\"batch\", and pass the mask to the model); "
                "nn.BatchNorm1d has no way to: give it the real rows, x[mask]",
    "try/layer-norm": 'nn.LayerNorm or nn.RMSNorm in place of {site} (norm="layer" or "rms"), which never see another token',
    "try/larger-batch": 'more tokens per batch; nn.SyncBatchNorm over processes (sync=True); norm="power", or renorm=(r, d) of normlab.BatchNorm',
    "try/keep": 'nothing, while {site} is no BatchNorm: keep norm="layer" or "rms"',
    "try/momentum": "running statistics that follow: momentum=0.1 at {site}, or momentum=None for the mean of all batches; more tokens per batch. "
                    "A gap of about 10 % is usual, here {size}",
    "try/power": 'norm="power", which trains with its running statistics; or freeze() of normlab.BatchNorm for the last part of the training',
    "try/writes": "look at what writes to {site}.weight between these two steps; to go on, load the last checkpoint before them (its gain was {before})",
    "try/gain-group": "a smaller lr and some weight decay for {site}.weight, in a parameter group of its own; norm=\"scale\", which has one gain",
    "try/no-decay": 'no weight decay on gains: {optimizer}([{{"params": matrices}}, {{"params": vectors, "weight_decay": 0.0}}]); it is {decay} now',
    "try/shrinks": "look at what writes to {site}.weight, and at its gradient: weight decay ({decay} here) does not explain it",
    "try/offset": 'gain="offset" of normlab\'s norms, whose decay goes to 1; fewer layers, if the block is not needed',
    "try/one": "start {site}.weight at one, or at a small number: what it multiplies must not be zero as well",
}  # fmt: skip
