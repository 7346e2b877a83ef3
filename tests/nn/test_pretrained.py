"""Model folders: exact round trips, and one clear error for everything that can be wrong with them."""

import json
import os
import resource
import subprocess
import sys

import pytest
import safetensors.torch
import torch
from tests.ranks import Child

from fastcaps import CapsNet, CapsNetConfig, FastCapsNet, fold
from fastcaps._files import write_atomically
from fastcaps.nn.pretrained import save_folded_from, weights_hash


@pytest.fixture
def folder(model, tmp_path):
    model.provenance = {"data": "none"}
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_round_trip(model, folder):
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    again = CapsNet.from_pretrained(folder)
    assert again.config == model.config
    assert again.provenance == {"data": "none"}
    assert weights_hash(again) == weights_hash(model)
    images = torch.rand(3, 2, 14, 12)
    assert (again(images).lengths == model(images).lengths).all()
    assert not again.training
    assert all(parameter.requires_grad for parameter in again.parameters())


def test_round_trip_folded(model, tmp_path):
    fast = fold(model, torch.ones(model.config.lower_capsules, 3))
    fast.save_pretrained(tmp_path)
    again = FastCapsNet.from_pretrained(tmp_path)
    images = torch.rand(3, 2, 14, 12)
    assert (again(images).lengths == fast(images).lengths).all()


@pytest.mark.parametrize(("stored", "loaded"), [(torch.float16, torch.float32), (torch.float64, torch.float64)])
def test_half_precision_is_only_a_way_of_storing(model, tmp_path, stored, loaded):
    model.to(stored).save_pretrained(tmp_path)
    again = CapsNet.from_pretrained(tmp_path)
    assert {p.dtype for p in again.parameters()} == {loaded}


def rewrite(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def damage_weights(folder, tensors):
    import hashlib

    content = safetensors.torch.save(tensors)
    (folder / "model.safetensors").write_bytes(content)
    rewrite(folder, weights_sha256=hashlib.sha256(content).hexdigest())


def test_missing_files_are_named(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere.config.json does not exist: expected a folder with config"):
        CapsNet.from_pretrained(tmp_path / "nowhere")
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model.safetensors does not exist: expected a folder"):
        CapsNet.from_pretrained(folder)
    with pytest.raises(FileNotFoundError, match=r"config.json.config.json does not exist"):
        CapsNet.from_pretrained(folder / "config.json")


def test_a_truncated_file_is_found(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"model.safetensors is damaged or belongs to another model: its SHA-256 is"):
        CapsNet.from_pretrained(folder)


def test_weights_of_another_model_are_found(folder, tmp_path, config):
    CapsNet(config).save_pretrained(tmp_path / "other")
    (folder / "model.safetensors").write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"model.safetensors is damaged or belongs to another model"):
        CapsNet.from_pretrained(folder)


def test_a_file_of_another_format_is_found(folder):
    import hashlib

    (folder / "model.safetensors").write_bytes(b"PK not safetensors")
    rewrite(folder, weights_sha256=hashlib.sha256(b"PK not safetensors").hexdigest())
    with pytest.raises(ValueError, match=r"model.safetensors is damaged or not a safetensors file: "):
        CapsNet.from_pretrained(folder)


def test_weights_must_fit_exactly(folder, model):
    state = dict(model.state_dict())
    bias = state.pop("stem.conv.bias")
    damage_weights(folder, state)
    with pytest.raises(ValueError, match=r"model.safetensors lacks stem.conv.bias: it is not of this model"):
        CapsNet.from_pretrained(folder)
    damage_weights(folder, {**state, "extra": bias})
    with pytest.raises(ValueError, match=r"lacks stem.conv.bias and has the unknown extra: it is not of this model"):
        CapsNet.from_pretrained(folder)
    damage_weights(folder, {**state, "stem.conv.bias": bias[:4].clone()})
    with pytest.raises(ValueError, match=r"stem.conv.bias has shape \(4,\), the configuration expects \(6,\)"):
        CapsNet.from_pretrained(folder)
    damage_weights(folder, {**state, "stem.conv.bias": bias.long()})
    with pytest.raises(ValueError, match=r"stem.conv.bias is torch.int64, expected a floating-point type"):
        CapsNet.from_pretrained(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"config.json is not JSON: "),
        ("[1]", r"config.json is damaged: expected object, got array"),
        ("{}", r"config.json is not of a fastcaps model: it lacks one of format, model, config, weights_sha256, prov"),
        ('{"model_type": "bert"}', r"config.json is not of a fastcaps model"),
    ],
)
def test_a_foreign_configuration_is_refused(folder, content, message):
    (folder / "config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        CapsNet.from_pretrained(folder)


def test_a_configuration_that_does_not_fit_is_refused(folder):
    with pytest.raises(ValueError, match=r"is of a CapsNet, expected a FastCapsNet: load it with CapsNet.from_pre"):
        FastCapsNet.from_pretrained(folder)
    rewrite(folder, config={"classes": 1})
    with pytest.raises(ValueError, match=r"config.json: classes is 1, expected at least 2"):
        CapsNet.from_pretrained(folder)
    rewrite(folder, format=99)
    with pytest.raises(ValueError, match=r"config.json has format 99, this version of fastcaps reads 1"):
        CapsNet.from_pretrained(folder)


@pytest.mark.parametrize(
    ("field", "value", "words"), [("weights_sha256", 5, "str"), ("config", None, "dict"), ("provenance", 3, "dict")]
)
def test_entries_of_another_kind_are_refused(folder, field, value, words):
    rewrite(folder, **{field: value})
    with pytest.raises(ValueError, match=f"config.json is damaged: {field} is {value}, expected a {words}"):
        CapsNet.from_pretrained(folder)


def test_a_move_that_fails_leaves_what_was_there(folder, config):
    before = (folder / "model.safetensors").read_bytes()
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    with pytest.raises(OSError, match="config.json"):
        CapsNet(config).save_pretrained(folder)
    assert (folder / "model.safetensors").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_many_may_write_the_same_file(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    path = tmp_path / "file"
    contents = [bytes([k]) * 1000 for k in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda content: write_atomically({path: content}), contents * 10))
    assert path.read_bytes() in contents
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_saving_over_a_model_replaces_it(folder, config):
    other = CapsNet(config)
    other.save_pretrained(folder)
    assert weights_hash(CapsNet.from_pretrained(folder)) == weights_hash(other)


def save_on_a_full_disk(folder):
    model = CapsNet.from_pretrained(folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    try:
        model.save_pretrained(folder)
    except OSError as error:
        print("refused", error.strerror)


@pytest.mark.slow
def test_a_full_disk_leaves_what_was_there(folder):
    """The system refuses to write more than 4 kB: the old model is still whole, and nothing else lies about."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert Child(save_on_a_full_disk, folder).succeed() == ("refused File too large\n", "")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_that_cannot_be_written_says_so(model, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        model.save_pretrained(tmp_path / "file" / "model")
    if os.geteuid() != 0:  # root may write anywhere
        tmp_path.chmod(0o500)
        with pytest.raises(PermissionError):
            model.save_pretrained(tmp_path)
        tmp_path.chmod(0o700)


def test_the_hash_ignores_the_decoder_only(config):
    model = CapsNet(config)
    first = weights_hash(model)
    with torch.no_grad():
        next(model.decoder.parameters())[0] += 1
        assert weights_hash(model) == first
        model.routing.weight[0, 0, 0, 0] += 1
    assert weights_hash(model) != first
    assert weights_hash(CapsNet(CapsNetConfig.from_dict({**config.to_dict(), "class_dimension": 8}))) != first


@pytest.fixture
def folded(model, folder):
    """A folded network that is stored as the network and the coefficients it is folded from."""
    coefficients = torch.rand(model.config.lower_capsules, 3, dtype=torch.float64)
    safetensors.torch.save_file({"values": coefficients}, folder.parent / "master.safetensors")
    save_folded_from(folder.parent / "fast", "model", "master.safetensors", {"data": "none"})
    return folder.parent / "fast"


def test_a_folded_network_that_is_not_stored(model, folded):
    again = FastCapsNet.from_pretrained(folded)
    coefficients = safetensors.torch.load_file(folded.parent / "master.safetensors")["values"]
    images = torch.rand(3, 2, 14, 12)
    assert torch.equal(again(images).lengths, fold(model, coefficients)(images).lengths)
    assert again.provenance == {"data": "none"}


@pytest.mark.parametrize("parts", [[], "model", {"model": "model"}, {"model": 1, "coefficients": "a"}])
def test_parts_of_a_folded_network_that_are_damaged(folded, parts):
    rewrite(folded, folded_from=parts)
    message = r"config\.json is damaged: folded_from lacks one of model, coefficients, coefficients_sha256"
    with pytest.raises(ValueError, match=message):
        FastCapsNet.from_pretrained(folded)


@pytest.mark.parametrize("entry", ["model", "coefficients"])
@pytest.mark.parametrize("name", ["../elsewhere", "/etc/passwd", "a/b", "..", ".", ""])
def test_parts_of_a_folded_network_are_beside_it(folded, entry, name):
    parts = json.loads((folded / "config.json").read_text())["folded_from"]
    rewrite(folded, folded_from=parts | {entry: name})
    with pytest.raises(ValueError, match=r"config\.json: folded_from is .*, expected names of files beside .*fast"):
        FastCapsNet.from_pretrained(folded)


def test_parts_of_a_folded_network_that_are_missing_or_others(folded):
    coefficients = folded.parent / "master.safetensors"
    content = coefficients.read_bytes()
    coefficients.write_bytes(content[:-1])
    with pytest.raises(ValueError, match=r"master\.safetensors is damaged or belongs to another model: its SHA-256"):
        FastCapsNet.from_pretrained(folded)
    coefficients.unlink()
    with pytest.raises(FileNotFoundError, match=r"master\.safetensors does not exist"):
        FastCapsNet.from_pretrained(folded)
    coefficients.write_bytes(content)
    weights = folded.parent / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + b"x")
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged or belongs to another model"):
        FastCapsNet.from_pretrained(folded)


@pytest.mark.parametrize("content", [b"junk", safetensors.torch.save({"others": torch.zeros(2)})])
def test_a_file_without_coefficients(folded, content):
    (folded.parent / "master.safetensors").write_bytes(content)
    save_folded_from(folded, "model", "master.safetensors", {})  # the hash is right, the content isn't
    with pytest.raises(
        ValueError, match=r"master\.safetensors (holds no coefficients|is damaged or not a safetensors file): "
    ):
        FastCapsNet.from_pretrained(folded)


def test_coefficients_of_another_network(folded):
    coefficients = folded.parent / "master.safetensors"
    safetensors.torch.save_file({"values": torch.ones(2, 3)}, coefficients)
    save_folded_from(folded, "model", "master.safetensors", {})
    with pytest.raises(ValueError, match=r"coefficients have shape \(2, 3\), expected"):
        FastCapsNet.from_pretrained(folded)


@pytest.mark.slow
def test_loading_does_not_start_the_compiler():
    loads = "import sys; from fastcaps import FastCapsNet; FastCapsNet.from_pretrained('mnist')"
    script = f"{loads}; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
