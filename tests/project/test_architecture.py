"""The shape of the project: layers of imports, public names, documentation that runs, pages in step, honest tests."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import doctest
import importlib
import inspect
import io
import re
import subprocess
import sys
import tarfile
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad

import normlab
from normlab import cli

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "normlab"
SOURCES = sorted(PACKAGE.rglob("*.py"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = sorted([*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md")])
PAIRS = [(ROOT / "README.md", ROOT / "README.zh.md")] + [
    (page, ROOT / "docs" / "zh" / page.name) for page in sorted((ROOT / "docs" / "en").glob("*.md"))
]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def run(*command: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)


# ---- imports ---------------------------------------------------------------------------------------------------------


def layers() -> list[set[str]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = settings["contracts"]
    return [{name.strip() for name in layer.split("|")} for layer in contract["layers"]]


def test_arrows_point_down():
    done = run(str(Path(sys.executable).parent / "lint-imports"), "--no-cache")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_module_has_a_place_in_the_layers():
    placed = set().union(*layers())
    top = {".".join(module_of(p).split(".")[:2]) for p in SOURCES} - {"normlab", "normlab.__main__"}
    assert top == placed


def test_the_design_page_draws_the_layers_of_the_contract():
    for language in ("en", "zh"):
        blocks = [b for tag, b in fences(ROOT / "docs" / language / "design.md") if tag == "text"]
        drawn = [re.split(r"\s{2,}", line)[0] for line in blocks[0].splitlines() if line.strip()]
        assert [{f"normlab.{n.strip()}" for n in line.split("|")} for line in drawn] == layers()


# Third-party imports, and who may have them.
ALLOWED = {
    "torch": lambda module: (
        module
        not in (
            "normlab",
            "normlab.errors",
            "normlab.bench.timing",
            "normlab.intervals",
            "normlab.lab.experiment",
            "normlab.lab.folders",
        )
        and not module.startswith(("normlab.report", "normlab.runs", "normlab.answer", "normlab.diagnosis"))
    ),
    "lazy_loader": lambda module: module == "normlab",
    "rich": lambda module: module.startswith("normlab.cli"),
    "safetensors": lambda module: module == "normlab.lab.checkpoint",
    "ray": lambda module: module == "normlab.lab.cluster",
    "filelock": lambda module: module == "normlab.lab.folders",
    "tomli": lambda module: module == "normlab.lab.experiment",
    "tomli_w": lambda module: module == "normlab.lab.experiment",
    "matplotlib": lambda module: module in ("normlab.claims.figures", "normlab.report.svg"),
    "starlette": lambda module: module.startswith("normlab.report.serve"),
    "uvicorn": lambda module: module.startswith("normlab.report.serve"),
    "onnx": lambda module: module == "normlab.bench.numerics",
    "onnxruntime": lambda module: module == "normlab.bench.numerics",
}


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_third_party_imports(path: Path):
    module, found = module_of(path), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    foreign = found - set(sys.stdlib_module_names)
    assert all(name in ALLOWED and ALLOWED[name](module) for name in foreign), f"{module} imports {sorted(foreign)}"


def is_private(name: str) -> bool:
    return name.startswith("_") and len(name) > 1 and not (name.startswith("__") and name.endswith("__"))


def torch_names() -> tuple[set[str], set[str]]:
    """(what torch keeps private anywhere normlab could meet it, the part of it that a module has on itself)."""
    module = {n for n in dir(torch.nn.Module()) if is_private(n)}
    optimizer = torch.optim.SGD([torch.zeros(1)])
    owners = (
        torch,
        torch._C,
        torch.Tensor,
        torch.autograd.Function,
        forward_ad,
        optimizer,
        torch.compiler,
        torch.library,
    )
    return module.union(*({n for n in dir(owner) if is_private(n)} for owner in owners)) | {"_orig_mod"}, module


OVERRIDDEN = {"_version", "_load_from_state_dict"}  # for torch to call; without torch's side nobody calls them


def private_names_of_torch(source: str) -> list[str]:
    everywhere, of_modules = torch_names()
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            mine = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "me")
            inherited = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "super"
            if inherited and node.attr in OVERRIDDEN:
                continue
            if node.attr in (of_modules if mine else everywhere):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value in everywhere or node.value == "__dlpack_c_exchange_api__":
                found.append(node.value)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            found += [part for part in parts if is_private(part)]
        elif isinstance(node, ast.Import):
            found += [
                a.name for a in node.names if a.name.startswith("torch.") and any(map(is_private, a.name.split(".")))
            ]
    return found


@pytest.mark.parametrize("path", [p for p in SOURCES if module_of(p) != "normlab._torch"], ids=module_of)
def test_private_names_of_torch_stand_in_one_module(path: Path):
    assert not private_names_of_torch(path.read_text())


@pytest.mark.parametrize("line", [
    "from torch._C import _len_torch_dispatch_stack as depth", "import torch._dynamo", "torch._dynamo.reset()", "forward_ad._current_level",
    "f._backward_cls.apply = f.backward", "norm._forward_hooks", "self._buffers", 'getattr(model, "_orig_mod", None)',
    'getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)', "torch._foreach_norm(tensors)", "x._version", "super()._named_members()",
])  # fmt: skip
def test_a_private_name_of_torch_is_found(line: str):
    assert private_names_of_torch(line)


def test_importing_normlab_is_cheap():
    done = run(sys.executable, "-c", "import sys, normlab; print('torch' in sys.modules)")
    assert done.stdout.strip() == "False", done.stdout + done.stderr


def test_only_the_bindings_know_python_and_nothing_knows_torch():
    includes = {
        path: re.findall(r'#\s*include\s*[<"]([^>"]+)', path.read_text())
        for path in sorted((ROOT / "csrc").rglob("*"))
        if path.suffix in (".h", ".cpp")
    }
    assert includes
    for path, headers in includes.items():
        binding = [h for h in headers if h.startswith(("nanobind", "pybind11", "Python.h"))]
        known = path.name in ("bindings.cpp", "arguments.h", "tensors.h")
        assert bool(binding) == known, f"{name_of(path)} includes {binding}"
        assert "tensors.h" not in headers or path.name == "arguments.h", name_of(path)
        assert "arguments.h" not in headers or path.name.startswith("bind"), name_of(path)
        assert not [h for h in headers if h.startswith(("torch", "ATen", "c10"))], name_of(path)


def test_formulas_stand_in_the_reference_only():
    hits = {module_of(p) for p in SOURCES if "rsqrt" in p.read_text()}
    assert "normlab.kernels.reference" in hits
    assert all(m.startswith("normlab.kernels") for m in hits), hits


# ---- public names ----------------------------------------------------------------------------------------------------


def test_public_names_resolve():
    assert len(set(normlab.__all__)) == len(normlab.__all__)
    for name in normlab.__all__:
        assert getattr(normlab, name) is not None
    assert set(normlab.__all__) <= set(dir(normlab))
    with pytest.raises(AttributeError):
        _ = normlab.no_such_name


DESCRIBING = (
    "layers.md",
    "placements.md",
    "transformer.md",
    "watch.md",
    "assays.md",
    "inspect.md",
    "runs.md",
    "lab.md",
    "kernels.md",
)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_public_names_are_documented(language: str):
    text = "".join((ROOT / "docs" / language / page).read_text() for page in DESCRIBING)
    missing = [name for name in normlab.__all__ if not re.search(rf"(?<!\w){name}(?!\w)", text)]
    assert not missing


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_placements_page_holds_every_placement(language: str):
    text = (ROOT / "docs" / language / "placements.md").read_text()
    rows = re.findall(r"^\| ([\w-]+) \| `(\w+)` \| `(.+)` \| arXiv (\S+) \| (\d+) \| (.+) \|$", text, flags=re.M)
    actual = [(n, f.placement.__name__, f.formula, f.paper, str(f.year)) for n, f in normlab.PLACEMENTS.items()]
    assert [row[:5] for row in rows] == actual
    if language == "en":
        assert [row[5] for row in rows] == [f.advice for f in normlab.PLACEMENTS.values()]
    for ends in {f.ends for f in normlab.PLACEMENTS.values()}:
        (names,) = re.findall(rf"^\| `{ends.__name__}` \|.*\| ([^|]+) \|$", text, flags=re.M)
        assert re.findall(r"[\w-]+", names) == [n for n, f in normlab.PLACEMENTS.items() if f.ends is ends]
    for page in ("README.md", "README.zh.md"):
        assert all(f"`{name}`" in (ROOT / page).read_text() for name in normlab.PLACEMENTS)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_models_page_holds_every_setting(language: str):
    text = (ROOT / "docs" / language / "transformer.md").read_text()
    (section,) = re.findall(r"^## (?:Settings|设置)\n(.*?)^## ", text, flags=re.M | re.S)
    rows = re.findall(r"^\| `(\w+)` \| `?([^|`]+)`? \|", section, flags=re.M)
    default = {
        f.name: f.default if f.default is not dataclasses.MISSING else f.default_factory()
        for f in dataclasses.fields(normlab.TransformerConfig)
    }
    assert [name for name, _ in rows] == list(default)
    assert {name: ast.literal_eval(shown) for name, shown in rows} == default


@pytest.mark.parametrize("language", ["en", "zh"])
def test_signatures_in_the_documentation_are_those_of_the_layers(language: str):
    text = (ROOT / "docs" / language / "layers.md").read_text()
    for cls in [facts.layer for facts in normlab.NORMS.values()] + [normlab.ResidualNorm]:
        (shown,) = re.findall(rf"^`({cls.__name__}\(.*\))`$", text, flags=re.M)
        documented = ast.parse(f"def {shown}: pass").body[0].args
        actual = list(inspect.signature(cls).parameters.values())
        assert [a.arg for a in documented.args] == [p.name for p in actual if p.kind is not p.KEYWORD_ONLY]
        assert [a.arg for a in documented.kwonlyargs] == [p.name for p in actual if p.kind is p.KEYWORD_ONLY]
        defaults = [ast.literal_eval(d) for d in (*documented.defaults, *documented.kw_defaults)]
        assert defaults == [p.default for p in actual if p.default is not p.empty], cls.__name__


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_readme_tables_hold_every_norm_and_verb(page: str):
    text = (ROOT / page).read_text().replace("\\|", "|")
    for name, facts in normlab.NORMS.items():
        row = f"| {name} | `{facts.layer.__name__}` | `{facts.formula}` |"
        assert row in text, f"no row {row}"
        assert f"arXiv {facts.paper}" in text
    assert set(re.findall(r"^\| `normlab ([\w-]+)` \|", text, flags=re.M)) == set(cli.VERBS)


# ---- documentation that runs -----------------------------------------------------------------------------------------


def fences(path: Path) -> list[tuple[str, str]]:
    """(tag, content) of every fenced block of a page."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", path.read_text(), flags=re.M | re.S)


@pytest.fixture
def as_before() -> Iterator[None]:
    threads, request = torch.get_num_threads(), normlab.kernels.current_request()
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    torch.set_num_threads(threads)
    assert normlab.kernels.current_request() == request, "a page left a kernel request behind"


@pytest.mark.parametrize("page", [en for en, _ in PAIRS if any(tag == "python" for tag, _ in fences(en))], ids=name_of)
def test_python_blocks_run(page: Path, as_before: None):
    """The blocks of a page share a namespace and run in order. Chinese pages hold the same code, to the syntax tree: once is enough."""
    namespace: dict[str, object] = {"__name__": "page"}
    blocks = [code for tag, code in fences(page) if tag == "python"]
    for number, code in enumerate(blocks, 1):
        exec(compile(code, f"{name_of(page)}, block {number}", "exec"), namespace)
    assert "normlab" in namespace, "a page with code should use normlab"


def test_pages_have_no_block_without_a_tag():
    """An untagged block would be neither run nor checked."""
    tags = {(name_of(p), tag) for p in [*PAGES, ROOT / "CONTRIBUTING.md"] for tag, _ in fences(p)}
    assert tags
    assert not [t for t in tags if t[1] not in ("python", "sh", "text")]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), flags=re.M))


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=name_of)
def test_commands_exist(page: Path):
    """Every `make X` and `normlab VERB --option` of a page, in shell blocks and in running text."""
    shell = "\n".join(code for tag, code in fences(page) if tag == "sh")
    shell = re.sub(r"#.*", "", shell) + "\n" + "\n".join(re.findall(r"`((?:make|normlab) [^`]+)`", page.read_text()))
    targets = set(re.findall(r"\bmake ([a-z]\w*)", shell))
    assert targets <= make_targets()
    verbs = next(
        a.choices for a in cli.build_parser()._actions if isinstance(a, argparse._SubParsersAction)
    )  # fmt: skip
    for verb, rest in re.findall(r"\bnormlab ([a-z][a-z-]*)([^\n]*)", shell):
        assert verb in verbs, f"normlab {verb}"
        for option in re.findall(r"--[\w-]+", rest):
            assert option in verbs[verb]._option_string_actions, f"normlab {verb} {option}"


def test_make_targets_and_verbs_are_complete():
    assert {"setup", "demo", "test", "check", "bench"} <= make_targets()
    assert set(cli.VERBS) == {
        "list", "doctor", "bench", "lr-range", "diagnose", "inspect", "runs", "numerics", "compare", "answer", "train", "report",
        "serve", "explore", "completion", "claims",
    }  # fmt: skip


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=name_of)
def test_links_lead_somewhere(page: Path):
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()) if "://" not in link]
    broken = [link for link in links if not (page.parent / link).exists()]
    assert not broken


DOCTESTED = sorted(module_of(p) for p in SOURCES if ">>> " in p.read_text())


@pytest.mark.parametrize("name", DOCTESTED)
def test_doctests(name: str):
    # as in a session that has imported torch, the layers, the placements and the models
    rooms = (importlib.import_module(f"normlab.{room}") for room in ("norms", "placements", "models"))
    names = {"torch": torch, "nn": torch.nn, **{k: v for room in rooms for k, v in vars(room).items()}}
    module = importlib.import_module(name)
    result = doctest.testmod(module, globs={**names, **vars(module)})
    assert result.attempted > 0 and result.failed == 0


def test_the_everyday_modules_have_doctests():
    rooms = {name.split(".")[1] for name in DOCTESTED}
    assert {
        "kernels",
        "functional",
        "norms",
        "placements",
        "models",
        "surgery",
        "watch",
        "diagnosis",
        "lab",
        "runs",
    } <= rooms


SHORTER = {"deep.py": ("--layers", "3", "--steps", "6")}  # minutes with their defaults


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_examples_run(path: Path):
    assert ast.get_docstring(ast.parse(path.read_text()))
    done = run(sys.executable, str(path), *SHORTER.get(path.name, ()))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 2, "an example shows something"


def test_there_are_examples():
    assert {"drop_in.py", "padding.py", "power_norm.py"} <= {p.name for p in EXAMPLES}


# ---- English and Chinese in step -------------------------------------------------------------------------------------


def prose(path: Path) -> str:
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)


def same_code(tag: str, code: str) -> str:
    """Code as it is compared: Python without comments, shell without comments, anything else as it stands."""
    if tag == "python":
        return ast.dump(ast.parse(code))
    return re.sub(r"\s*#.*", "", code) if tag == "sh" else code


def test_every_page_has_its_twin():
    english, chinese = ({p.name for p in (ROOT / "docs" / language).glob("*.md")} for language in ("en", "zh"))
    assert english == chinese
    wanted = {
        "index",
        "layers",
        "placements",
        "transformer",
        "lab",
        "masks",
        "numerics",
        "kernels",
        "benchmark",
        "design",
        "log",
    }
    assert {f"{name}.md" for name in wanted} <= english


@pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=[name_of(a) for a, _ in PAIRS])
def test_pages_in_step(english: Path, chinese: Path):
    levels = [re.findall(r"^(#+) \S", prose(p), flags=re.M) for p in (english, chinese)]
    assert levels[0] == levels[1], "headings"
    code = [[(tag, same_code(tag, block)) for tag, block in fences(p)] for p in (english, chinese)]
    assert code[0] == code[1], "code blocks"
    formulas = [re.findall(r"^ {4}\S.*$", prose(p), flags=re.M) for p in (english, chinese)]
    assert formulas[0] == formulas[1], "indented formulas"
    tables = [[line.count("|") for line in prose(p).splitlines() if line.startswith("|")] for p in (english, chinese)]
    assert tables[0] == tables[1], "tables"
    bullets = [len(re.findall(r"^(?:- |\d+\. )", prose(p), flags=re.M)) for p in (english, chinese)]
    assert bullets[0] == bullets[1], "lists"
    han = re.compile(r"[\u4e00-\u9fff]")
    assert len(han.findall(prose(chinese))) > 100, "the Chinese page is not Chinese"
    assert len(han.findall(prose(english))) < 10, "the English page is not English"


def test_measured_tables_are_the_same_in_both_languages():
    tables = []
    for language in ("en", "zh"):
        text = (ROOT / "docs" / language / "numerics.md").read_text()
        before, _, rest = text.partition("<!-- table: make numerics -->\n")
        table, _, after = rest.partition("<!-- end of table -->")
        assert before and after, "the marker lines that `normlab numerics --write` looks for"
        tables.append(table.splitlines()[1:])  # without the header
    assert tables[0] == tables[1] and len(tables[0]) > 10


# ---- honest tests, clean files ---------------------------------------------------------------------------------------


def checks_something(function: ast.AST) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            last = called.rsplit(".", 1)[-1]
            if (
                last.startswith("assert")
                or called.startswith("torch.testing.")
                or called in ("pytest.raises", "pytest.warns")
            ):
                return True
    return False


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("test_*.py")), ids=name_of)
def test_no_test_without_an_assertion(path: Path):
    tests = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_")
    ]
    assert tests
    assert not [f"{t.name}, line {t.lineno}" for t in tests if not checks_something(t)]


def test_a_test_without_an_assertion_is_found():
    idle = "def test_idle():\n    y = layer(x)\n    y.sum().backward()\n"
    assert not checks_something(ast.parse(idle))
    for busy in ("    assert y", "    assert_near(y, x)", "    with pytest.raises(ValueError): y()"):
        assert checks_something(ast.parse(idle + busy))


def project_files(root: Path) -> list[Path]:
    """What the project consists of: what git tracks, not what running it leaves behind. In a copy without git (an unpacked
    sdist, say) there is no such list, and nothing left behind that would not be our own: everything but the usual folders."""
    done = (
        subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False)
        if (root / ".git").exists()
        else None
    )
    if done is not None and done.returncode == 0:
        return [root / name for name in done.stdout.split("\0") if name and (root / name).is_file()]
    made = ("build", "dist", "runs", "__pycache__")
    return [
        path
        for path in sorted(root.rglob("*"))
        if path.is_file() and not any(p in made or (p[0] == "." and p != ".ci") for p in path.relative_to(root).parts)
        and not path.match("bench-*.json")
    ]  # fmt: skip


def text_files() -> Iterator[tuple[Path, str]]:
    for path in project_files(ROOT):
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


@pytest.mark.parametrize("git", [True, False], ids=["git", "no-git"])
def test_what_a_demonstration_leaves_behind_is_not_looked_at(git: bool, tmp_path: Path):
    for name in ("README.md", "src/a.py", "runs/demo/report.html", ".venv/lib/b.py", "build/c.txt", "bench-1.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    if git:
        for command in (["init", "-q"], ["add", "README.md", "src"]):
            subprocess.run(["git", *command], cwd=tmp_path, check=True)
    assert [p.relative_to(tmp_path).as_posix() for p in project_files(tmp_path)] == ["README.md", "src/a.py"]


def test_no_path_of_this_machine():
    places = {str(ROOT), str(Path.home()), "/" + "work", "/" + "root"} - {"/"}
    pattern = re.compile("|".join(rf"(?<![\w.}}*-]){re.escape(p)}(?![\w.-])" for p in sorted(places)))
    found = [f"{name_of(path)}: {m.group()}" for path, text in text_files() for m in pattern.finditer(text)]
    assert not found


def comments(path: Path, text: str) -> str:
    """Where a marker would stand: comments of Python, everything elsewhere."""
    if path.suffix != ".py":
        return text
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return "\n".join(t.string for t in tokens if t.type == tokenize.COMMENT)


def test_no_loose_ends():
    markers = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
    found = [f"{name_of(p)}: {m.group()}" for p, text in text_files() for m in markers.finditer(comments(p, text))]
    assert not found


def test_the_sdist_holds_what_its_makefile_and_its_build_name(tmp_path: Path):
    pytest.importorskip("scikit_build_core")
    done = run(
        sys.executable,
        "-c",
        "import sys; from scikit_build_core.build import build_sdist as b; b(sys.argv[1])",
        str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    (packed,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    folders = {"/".join(name.split("/")[:n]) for name in files for n in range(1, name.count("/") + 1)}
    wanted = set()
    for page in ("Makefile", "CMakeLists.txt"):
        text = re.sub(r"#.*", "", (ROOT / page).read_text())
        wanted |= {
            w.strip("/")
            for w in re.findall(
                r"(?<![\w/.])/?[\w/-]+\.(?:py|txt|toml|cpp)\b|(?<=\s)(?:docs|csrc|tests)(?=[\s/])", text
            )
        }
    assert {"constraints.txt", "csrc/tests/kernel_test.cpp", "tests/mutation_drill.py", "docs"} <= wanted
    assert not {w for w in wanted if w not in files | folders and not w.startswith(("_native", "CMAKE"))}


def test_continuous_integration_does_what_the_readme_says_in_its_order():
    """In one clone, as a newcomer: what one command leaves behind must not stop the next."""
    told = re.findall(
        r"^make (\w+)", next(block for tag, block in fences(ROOT / "README.md") if tag == "sh"), flags=re.M
    )
    ci = ROOT / ".ci" / "run"
    if not ci.exists():
        pytest.skip("there is no .ci/run here")
    done = re.findall(r"^make (\w+)", ci.read_text(), flags=re.M)
    assert told == ["demo", "test"] and done[: len(told)] == told
