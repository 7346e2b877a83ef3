"""What needs PyTorch: both routings, coefficients over the iterations, reconstructions."""

import base64
import json
import time

import numpy as np
import pytest
import torch
from tests.serving.conftest import PREDICT, request

from fastcaps import CapsNet, FastCapsNet
from fastcaps.serving import background, open_model

EXPLORE, RECONSTRUCT = "/v1/models/mnist/explore", "/v1/models/mnist/reconstruct"


@pytest.fixture(scope="module")
def address(digits):
    with background({"mnist": open_model("mnist", threads=1)}) as address:
        while (response := request(address, "POST", EXPLORE, digits[0])).status == 503:
            assert "the PyTorch network of mnist is being loaded: try again in 2 s" in response.json["error"]
            time.sleep(0.1)
        yield address


def pixels(image):
    shape = image["channels"], image["height"], image["width"]
    return np.frombuffer(base64.b64decode(image["pixels"]), np.uint8).reshape(shape)


@pytest.mark.slow
def test_both_routings_in_one_answer(address, digits, serial):
    [image] = request(address, "POST", PREDICT + "?routing=both", digits[0]).json["images"]
    assert image["fast"]["lengths"] == serial[0]
    seen = pixels(request(address, "POST", EXPLORE, digits[0]).json["input"])
    with torch.no_grad():
        lengths = CapsNet.from_pretrained("mnist")(torch.from_numpy(seen[None].copy())).lengths[0]
    assert image["dynamic"]["lengths"] == pytest.approx(lengths.tolist(), abs=1e-5)
    assert image["dynamic"]["name"] == "7"


def test_the_coefficients_of_the_winner_over_the_iterations(address, digits):
    answer = request(address, "POST", EXPLORE, digits[0]).json
    assert answer["winner"]["name"] == "7"
    assert np.linalg.norm(answer["winner"]["capsule"]) == pytest.approx(max(answer["fast"]["lengths"]), abs=1e-5)
    iterations = np.array(answer["coefficients"]["iterations"])
    assert iterations.shape == (3, 6, 6)
    assert (iterations[0] == 1).all()
    model = CapsNet.from_pretrained("mnist")
    with torch.no_grad():
        routed = model(torch.from_numpy(pixels(answer["input"])[None].copy()), with_coefficients=True)
    last = routed.coefficients[0, :, 7].reshape(6, 6, 32).mean(-1).numpy()
    assert iterations[-1] == pytest.approx(last, abs=1e-5)
    assert np.array(answer["coefficients"]["master"]).shape == (6, 6)
    assert answer["fast"]["milliseconds"] > 0 < answer["dynamic"]["milliseconds"]


def test_a_capsule_is_drawn(address, digits):
    answer = request(address, "POST", EXPLORE, digits[0]).json
    capsule = answer["winner"]["capsule"]
    body = json.dumps({"class": 7, "capsule": capsule}).encode()
    drawn = pixels(request(address, "POST", RECONSTRUCT, body).json)
    assert (drawn == pixels(answer["reconstruction"])).all()
    capsules = torch.zeros(1, 10, 16)
    capsules[0, 7] = torch.tensor(capsule)
    with torch.no_grad():
        expected = FastCapsNet.from_pretrained("mnist").reconstruct(capsules)[0]
    assert np.abs(drawn - 255 * expected.numpy()).max() < 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "the body is no capsule, expected"),
        (b'{"class": 7, "capsule": "x"}', "the body is no capsule, expected"),
        (b'{"class": 10, "capsule": [0]}', "class is unknown, expected"),
        (b'{"class": true, "capsule": [0]}', "the body is no capsule, expected"),
        (b'{"class": 7, "capsule": [0]}', "capsule has other numbers, expected"),
        (json.dumps({"class": 7, "capsule": [1e39] * 16}).encode(), "capsule has other numbers, expected"),
    ],
)
def test_what_is_no_capsule_is_refused(address, body, words):
    response = request(address, "POST", RECONSTRUCT, body)
    assert response.status == 422
    assert words in response.json["error"]


def test_examples_for_the_page(address, digits):
    examples = request(address, "GET", "/v1/models/mnist/examples").json["examples"]
    assert [example["label"] for example in examples] == [str(k) for k in range(10) for _ in range(2)]
    assert base64.b64decode(examples[14]["png"]) == digits[0]
