"""Every file the library reads: how a good one is made, and what reads it."""

import dataclasses
import functools
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tests.data import tiny
from tests.hostile import mutators as m
from tests.hostile.supervisor import Target
from tests.training.conftest import make_data, small_config

from fastcaps import CapsNet, CapsNetConfig, FastCapsNet, MasterCoefficients, accumulate, fold, runtime
from fastcaps._files import json_bytes
from fastcaps._images import no_bombs
from fastcaps.analysis.ablation import Ablation
from fastcaps.analysis.evaluation import evaluate
from fastcaps.analysis.results import Evaluation
from fastcaps.analysis.training_pass import cached
from fastcaps.data import amat, cifar10, idx
from fastcaps.data.registry import SETS, NamedSet
from fastcaps.exporting import export
from fastcaps.reproduction import RunResult
from fastcaps.runtime import file
from fastcaps.runtime.pictures import network_input
from fastcaps.training import Run, Trainer, TrainSettings
from fastcaps.training.config import TrainConfig

_RESULTS = Path(__file__).parent.parent.parent / "results"


@functools.cache
def specimens() -> Path:
    """Make one good file of each kind; return their folder."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    data = make_data()
    model = CapsNet(small_config())
    trainer = Trainer(model, data, TrainSettings(epochs=1, batch_size=16, validation=0.25), folder / "run")
    trainer.fit()
    images, labels = data.train.images(torch.arange(48)), data.train.labels
    master = accumulate(model, [(images / 255, labels)])
    assert isinstance(master, MasterCoefficients)
    master.save(folder / "run" / "master.safetensors")
    fast = fold(model, master)
    fast.save_pretrained(folder / "run" / "fast")
    export(fast, folder / "model.onnx", tests=[(images, labels)], threads=1)
    export(model, folder / "dynamic.onnx", tests=[(images, labels)], threads=1)
    _write_results(folder, model, master)
    _write_data(folder)
    Image.fromarray(np.arange(40 * 30, dtype=np.uint8).reshape(40, 30)).save(folder / "picture.png")
    Image.fromarray(np.zeros((40, 30, 3), np.uint8)).save(folder / "picture.jpg")
    return folder


def _write_results(folder: Path, model: CapsNet, master: MasterCoefficients) -> None:
    data = make_data()
    batches = [(data.test.images(torch.arange(30)), data.test.labels)]
    evaluation = dataclasses.replace(evaluate(model, master, batches), run="run", data="patterns", part="test")
    ablation = json.loads((_RESULTS / "cifar10-ablation.json").read_bytes())
    for name, content in {
        "evaluation.json": json_bytes(evaluation.to_dict()),
        "result.json": (_RESULTS / "mnist-max_min-0.json").read_bytes(),
        "ablation.json": json_bytes({**ablation, "trials": ablation["trials"][:2]}),
        "config.toml": TrainConfig().changed(data="digits", out="x", epochs=3).to_toml().encode(),
    }.items():
        (folder / name).write_bytes(content)
    cached([folder / "cache.safetensors"], {"key": 1}, _arrays, lambda place: None)


def _arrays() -> dict[str, Any]:
    return {"a": np.arange(6.0).reshape(2, 3), "b": np.arange(4)}


def _read_cache(path: Path) -> object:
    """Whatever is in it, the right arrays come out."""
    arrays = cached([path], {"key": 1}, _arrays, lambda place: None)
    if any(not np.array_equal(arrays[name], array) for name, array in _arrays().items()):
        raise AssertionError("other arrays than were stored")
    return arrays


def _write_data(folder: Path) -> None:
    entry = SETS["mnist"]
    tiny.write(folder / "idx", entry, tiny.idx_contents())
    names = [item.name for item in tiny.files_of(SETS["cifar10"])]
    packed = folder / "tar" / "cifar10" / "cifar-10-binary.tar.gz"
    packed.parent.mkdir(parents=True)
    packed.write_bytes(tiny.tar_bytes(dict(zip(names, tiny.cifar_contents(), strict=True))))
    pictures, labels = tiny.digit_images(30)
    content = tiny.amat_bytes(pictures / 255, labels)
    rotated = SETS["rotated_mnist"]
    assert rotated.files is not None
    assert rotated.files.archive is not None
    archive = folder / "zip" / rotated.files.folder / rotated.files.archive.name
    archive.parent.mkdir(parents=True)
    archive.write_bytes(tiny.zip_bytes({item.name: content for item in rotated.files.files}))


def _unhashed(entry: NamedSet, train: int, test: int) -> NamedSet:
    """Return the entry of a set whose files nobody has published hashes of."""
    assert entry.files is not None
    free = tuple(dataclasses.replace(one, sha256=None, unpacked_sha256=None) for one in entry.files.files)
    return dataclasses.replace(entry, files=dataclasses.replace(entry.files, files=free), train=train, test=test)


def _copy(part: str, mutated: str) -> Callable[[Path], Path]:
    """Return what copies a specimen into a folder, and says which file of it is mutated."""

    def prepare(folder: Path) -> Path:
        source = specimens() / part
        if source.is_dir():
            shutil.copytree(source, folder / part)
        else:
            shutil.copy(source, folder / part)
        return folder / mutated

    return prepare


def _resealed(mutator: m.Mutator) -> m.Mutator:
    """Return a mutator of an exported file that gives it a valid seal again."""
    seal = len(file.sealed(b""))

    def mutate(content: bytes, rng: object) -> bytes:
        return file.sealed(mutator(content[:-seal], rng))  # type: ignore[arg-type]

    return mutate


def _about_changed(content: bytes, rng: object) -> bytes:
    """Mutate the JSON in the metadata of an exported file, and seal it again."""
    import onnx

    model = onnx.load_from_string(content)
    for entry in model.metadata_props:
        if entry.key == file.ABOUT:
            entry.value = m.mutate_json(entry.value.encode(), rng).decode(errors="replace")  # type: ignore[arg-type]
    metadata = [entry for entry in model.metadata_props if entry.key == file.ABOUT]
    del model.metadata_props[:]
    model.metadata_props.extend(metadata)
    return file.sealed(model.SerializeToString())


_OPERATORS = [
    "Loop",
    "If",
    "Expand",
    "Tile",
    "ConstantOfShape",
    "Range",
    "Resize",
    "Pad",
    "Conv",
    "MatMul",
    "Relu",
    "Add",
]


def _graph_changed(content: bytes, rng: random.Random) -> bytes:
    """Change the graph of an exported file, and seal it again."""
    import onnx

    model = onnx.load_from_string(content)
    for _ in range(rng.choice([1, 1, 2, 4])):
        _change_graph(model.graph, rng)
    metadata = [entry for entry in model.metadata_props if entry.key == file.ABOUT]
    del model.metadata_props[:]
    model.metadata_props.extend(metadata)
    return file.sealed(model.SerializeToString())


def _change_graph(graph: Any, rng: random.Random) -> None:
    """Change an operator, an attribute, a shape, a weight or an edge."""
    import onnx

    node, tensor = rng.choice(graph.node), rng.choice(graph.initializer)
    extreme = rng.choice([0, -1, 2, 7, 10**4, 10**6, 2**31, 2**62])
    kind = rng.randrange(8)
    if kind == 0:
        node.op_type = rng.choice(_OPERATORS)
    elif kind == 1:
        name = rng.choice(["pads", "dilations", "strides", "group", "axis", "to", "perm", "keepdims"])
        node.attribute.append(onnx.helper.make_attribute(name, rng.choice([extreme, [extreme] * 4])))
    elif kind == 2 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = extreme
    elif kind == 3 and tensor.data_type == onnx.TensorProto.INT64 and tensor.raw_data:
        values = np.frombuffer(tensor.raw_data, np.int64).copy()
        values[rng.randrange(len(values))] = extreme
        tensor.raw_data = values.tobytes()
    elif kind == 4 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice([rng.choice(graph.node).output[0], tensor.name])
    elif kind == 5:
        graph.node.append(node)
    elif kind == 6:
        size = rng.choice([1, 300, 3000])
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.ones((size, 1), np.float32), tensor.name))
    else:
        del graph.node[rng.randrange(len(graph.node))]


def _read_run(path: Path) -> object:
    run = Run.open(path.parent)
    return run.about, run.metrics(), repr(run)


def _resume(path: Path) -> object:
    """Resume a run of one epoch that is done: reads the checkpoint, trains nothing."""
    trainer = Trainer(CapsNet(small_config()), make_data(), _settings(), path.parent)
    return trainer.fit(resume=True)


def _settings() -> TrainSettings:
    return TrainSettings(epochs=1, batch_size=16, validation=0.25)


def _read_idx(path: Path) -> object:
    entry = _unhashed(SETS["mnist"], 60, 20)
    return idx.load(entry, tiny.located(entry.files, path.parent.parent))


def _read_tar(path: Path) -> object:
    entry = _unhashed(SETS["cifar10"], 20, 4)
    return cifar10.load(entry, tiny.located(entry.files, path.parent.parent))


def _read_zip(path: Path) -> object:
    entry = _unhashed(SETS["rotated_mnist"], 30, 30)
    return amat.load(entry, tiny.located(entry.files, path.parent.parent))


def _read_picture(path: Path) -> object:
    with no_bombs():
        return network_input(path, CapsNetConfig.mnist())


def _safetensors_mutators() -> Sequence[m.Mutator]:
    return [*m.BLIND, *[m.mutate_safetensors] * 7]


JSON = [*m.BLIND, *[m.mutate_json] * 14]
TARGETS = [
    Target(
        "config.json", _copy("run", "run/model/config.json"), lambda path: CapsNet.from_pretrained(path.parent), JSON
    ),
    Target(
        "weights",
        _copy("run", "run/model/model.safetensors"),
        lambda path: CapsNet.from_pretrained(path.parent),
        _safetensors_mutators(),
    ),
    Target(
        "folded network",
        _copy("run", "run/fast/config.json"),
        lambda path: FastCapsNet.from_pretrained(path.parent),
        JSON,
    ),
    Target("coefficients", _copy("run", "run/master.safetensors"), MasterCoefficients.load, _safetensors_mutators()),
    Target("run.json", _copy("run", "run/run.json"), _read_run, JSON),
    Target("metrics.jsonl", _copy("run", "run/metrics.jsonl"), _read_run, JSON),
    Target("checkpoint", _copy("run", "run/checkpoint.safetensors"), _resume, _safetensors_mutators(), writes=True),
    Target("exported file", _copy("model.onnx", "model.onnx"), runtime.load, m.BLIND),
    Target(
        "exported file with a valid seal",
        _copy("model.onnx", "model.onnx"),
        runtime.load,
        [*map(_resealed, m.BLIND), *[_about_changed] * 7],
    ),
    Target("graph of an exported file", _copy("model.onnx", "model.onnx"), runtime.load, [_graph_changed]),
    Target("graph with dynamic routing", _copy("dynamic.onnx", "dynamic.onnx"), runtime.load, [_graph_changed]),
    Target("evaluation.json", _copy("evaluation.json", "evaluation.json"), Evaluation.load, JSON),
    Target("results/*.json", _copy("result.json", "result.json"), RunResult.load, JSON),
    Target("ablation.json", _copy("ablation.json", "ablation.json"), Ablation.load, JSON),
    Target("config.toml", _copy("config.toml", "config.toml"), TrainConfig.load, [*m.BLIND, *[m.mutate_toml] * 7]),
    Target("analysis cache", _copy("cache.safetensors", "cache.safetensors"), _read_cache, _safetensors_mutators()),
    Target(
        "idx",
        _copy("idx", "idx/mnist/train-images-idx3-ubyte.gz"),
        _read_idx,
        [*m.BLIND, *map(m.inside_gzip, m.BLIND), m.bomb],
    ),
    Target(
        "tar", _copy("tar", "tar/cifar10/cifar-10-binary.tar.gz"), _read_tar, [*m.BLIND, *map(m.inside_gzip, m.BLIND)]
    ),
    Target(
        "zip",
        _copy("zip", f"zip/{SETS['rotated_mnist'].files.folder}/{SETS['rotated_mnist'].files.archive.name}"),  # type: ignore[union-attr]
        _read_zip,
        m.BLIND,
    ),
    Target("picture, PNG", _copy("picture.png", "picture.png"), _read_picture, m.BLIND),
    Target("picture, JPEG", _copy("picture.jpg", "picture.jpg"), _read_picture, m.BLIND),
]
