"""The table of placements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import Table
from .base import NoNorm, Placement, ReZero
from .ends import DualEnds, Ends, FinalNorm, NormedEnds
from .initialization import b2t_init, deepnorm_init, plain_init, subln_init
from .mixed import HybridNorm, MixNorm
from .post import B2T, Admin, DeepNorm, PostNorm, ResidualDual
from .pre import LayerNormScaling, NormFormer, PeriNorm, PreNorm, ReorderedNorm, SandwichNorm, SubNorm


@dataclass(frozen=True, kw_only=True)
class PlacementFacts:
    """One row of PLACEMENTS."""

    placement: type[Placement]
    formula: str
    paper: str
    year: int
    advice: str
    ends: type[Ends] = Ends
    init: Callable[..., None] = plain_init
    normed_stream: bool = False  # does each block hand on a stream that a norm made?

    @property
    def has_own_ends(self) -> bool:
        """Ends that belong to the placement, so that a final norm can be neither added nor left out."""
        return self.ends not in (Ends, FinalNorm)

    def ends_with(self, final_norm: bool | None) -> type[Ends]:
        """The ends, with a final norm as asked; None: as the placement has it."""
        return self.ends if final_norm is None else FinalNorm if final_norm else Ends

    def ends_in_norm(self, final_norm: bool | None) -> bool:
        return self.normed_stream or self.ends_with(final_norm) is not Ends


PLACEMENTS: Table[PlacementFacts] = Table("placement", {
    "none": PlacementFacts(placement=NoNorm, formula="x + S(x)", paper="1512.03385", year=2015, advice="a baseline: shows what a norm is for"),
    "post": PlacementFacts(placement=PostNorm, normed_stream=True, formula="N(x + S(x))", paper="1706.03762", year=2017, advice="up to about 12 layers, with warm-up"),
    "pre": PlacementFacts(placement=PreNorm, ends=FinalNorm, formula="x + S(N(x)); N at the end", paper="2002.04745", year=2020, advice="the safe default; upper layers do less and less"),
    "deepnorm": PlacementFacts(placement=DeepNorm, normed_stream=True, init=deepnorm_init, formula="N(a x + S(x)); matrices b times smaller", paper="2203.00555", year=2022, advice="post-norm that trains at hundreds of layers"),
    "sandwich": PlacementFacts(placement=SandwichNorm, ends=FinalNorm, formula="x + N(S(N(x))); N at the end", paper="2105.13290", year=2021, advice="when branch outputs grow too large in 16 bits"),
    "peri": PlacementFacts(placement=PeriNorm, ends=NormedEnds, formula="N at the start; x + N(S(N(x))); N at the end", paper="2502.02732", year=2025, advice="pre-norm whose stream grows slowly"),
    "sub-ln": PlacementFacts(placement=SubNorm, ends=FinalNorm, init=subln_init, formula="x + W N(S'(N(x))); N at the end", paper="2210.06423", year=2022, advice="pre-norm for larger learning rates; one norm more per sub-layer, cross-attention excepted"),
    "normformer": PlacementFacts(placement=NormFormer, ends=FinalNorm, formula="x + N(A(N(x))), x + W N(F'(N(x))); head factors; N at the end", paper="2110.09456", year=2021, advice="evens out pre-norm's gradients between lower and upper layers"),
    "residual-dual": PlacementFacts(placement=ResidualDual, ends=DualEnds, formula="x = N(x + S(x)), r = r + S(x); x + N(r)", paper="2304.14802", year=2023, advice="post-norm with a clear way for the gradient; twice the stream"),
    "b2t": PlacementFacts(placement=B2T, normed_stream=True, init=b2t_init, formula="h = N(x + A(x)); N(x + h + F(h))", paper="2206.00330", year=2022, advice="post-norm that survives at more layers"),
    "mix-ln": PlacementFacts(placement=MixNorm, ends=FinalNorm, formula="post in the lowest quarter, pre above; N at the end", paper="2412.13795", year=2024, advice="puts pre-norm's upper layers to use"),
    "hybrid-norm": PlacementFacts(placement=HybridNorm, ends=FinalNorm, formula="h = x + A(QKV-norm), y = N(h), y + F(y); N at the end", paper="2503.04598", year=2025, advice="stable attention, post-normed feed-forward"),
    "layernorm-scaling": PlacementFacts(placement=LayerNormScaling, ends=FinalNorm, formula="x + S(N(x) / sqrt(layer)); N at the end", paper="2502.05795", year=2025, advice="pre-norm with a tamed stream; not with depth-scaled initialization"),
    "reordered": PlacementFacts(placement=ReorderedNorm, ends=FinalNorm, formula="x + N(S(x)); N at the end", paper="2501.00656", year=2025, advice="bounded branches; use it with QK-norm"),
    "admin": PlacementFacts(placement=Admin, normed_stream=True, formula="N(w x + S(x)), w from the depth", paper="2004.08249", year=2020, advice="post-norm for deep models, with learned stream weights"),
    "rezero": PlacementFacts(placement=ReZero, formula="x + a S(x), a from 0", paper="2003.04887", year=2020, advice="no norm to pay for; can be fragile in 16 bits"),
})  # fmt: skip
