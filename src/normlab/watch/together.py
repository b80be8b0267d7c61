"""Small norms of one step, kept until it is over and measured together: in a small model the price of a recorded step is the number
of operators, not their work. What is kept is a copy: a model may write into what a norm gave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torch import Tensor

from .frames import SMALL, NormFrame, NormFrames, NormProbe


class Together:
    def __init__(self) -> None:
        self._frames: list[NormFrame] = []
        self._known: set[str] = set()  # sites of earlier steps: those that come later have nothing to be compared with

    @staticmethod
    def fits(frame: NormFrame) -> bool:
        return frame.x.numel() <= SMALL

    def keep(self, frame: NormFrame) -> None:
        self._frames.append(replace(frame, x=frame.x.clone(), y=frame.y.clone()))

    def forget(self) -> None:
        self._frames = []

    def groups(self) -> Iterator[NormFrames]:
        """Of what was kept; then it is forgotten."""
        groups: dict[object, list[NormFrame]] = {}
        for frame in self._frames:
            groups.setdefault((frame.site.name in self._known, NormFrames.alike(frame)), []).append(frame)
        self._known.update(frame.site.name for frame in self._frames)
        self._frames = []
        for frames in groups.values():
            yield NormFrames(frames)


def by_site(probe: NormProbe, frames: NormFrames) -> Mapping[str, Mapping[str, Tensor]]:
    """{quantity: {site: value}}."""
    names = [site.name for site in frames.sites]
    return {q: dict(zip(names, values.unbind(0), strict=True)) for q, values in probe.measure_all(frames).items()}
