"""What clients send and get: pictures in every form, answers, refusals with one sentence."""

import base64
import http.client
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.serving.conftest import PREDICT, png, request
from typer.testing import CliRunner

from fastcaps import __version__
from fastcaps.cli import app
from fastcaps.serving import Settings, background, open_model
from fastcaps.serving.models import open_models


def multipart(*parts: tuple[str, bytes]) -> tuple[bytes, str]:
    lines = [
        b'--limit\r\nContent-Disposition: form-data; name="images"; filename="%s"\r\n\r\n%s\r\n' % (name.encode(), body)
        for name, body in parts
    ]
    return b"".join(lines) + b"--limit--\r\n", "multipart/form-data; boundary=limit"


def test_a_picture_as_the_body(address, digits, serial):
    response = request(address, "POST", PREDICT, digits[0])
    assert response.status == 200
    [image] = response.json["images"]
    answer = image["fast"]
    assert (answer["class"], answer["name"], image["inverted"]) == (7, "7", False)
    assert answer["lengths"] == serial[0]
    assert answer["length"] == max(serial[0])
    assert answer["runner_up_length"] == sorted(serial[0])[-2]
    assert answer["runner_up"] == str(np.argsort(serial[0])[-2])
    assert set(answer["milliseconds"]) == {"queued", "network", "batch"}
    assert response.json["milliseconds"] > 0


def test_pictures_as_multipart_and_as_base64(address, digits, serial):
    body, content_type = multipart(("<b>seven</b>.png", digits[0]), ("two.png", digits[1]))
    forms = request(address, "POST", PREDICT, body, content_type=content_type).json["images"]
    assert [image["image"] for image in forms] == ["<b>seven</b>.png", "two.png"]
    encoded = [base64.b64encode(digit).decode() for digit in digits[:2]]
    encoded[1] = "data:image/png;base64," + encoded[1]
    body = json.dumps({"images": encoded}).encode()
    documents = request(address, "POST", PREDICT, body, content_type="application/json").json["images"]
    for images in (forms, documents):
        assert [image["fast"]["lengths"] for image in images] == serial[:2]


def test_one_bad_picture_does_not_touch_the_others(address, digits, serial):
    body, content_type = multipart(("a", digits[0]), ("b", digits[1][:80]), ("c", b"no picture"), ("d", digits[3]))
    first, second, third, fourth = request(address, "POST", PREDICT, body, content_type=content_type).json["images"]
    assert [first["fast"]["lengths"], fourth["fast"]["lengths"]] == [serial[0], serial[3]]
    assert "can't be decoded as an image" in second["error"]
    assert third["error"].startswith("the picture is damaged or of an unknown format, expected one of PNG, JPEG")


def test_pictures_are_limited_together(address):
    body, content_type = multipart(*[("a", png(np.zeros((1000, 1000), np.uint8)))] * 5)
    images = request(address, "POST", PREDICT, body, content_type=content_type).json["images"]
    assert ["error" in image for image in images] == [False] * 4 + [True]
    assert "the pictures have more than 4,000,000 pixels together" in images[-1]["error"]


def test_a_dark_digit_on_white_is_inverted(address, digits):
    pixels = 255 - np.asarray(Image.open(io.BytesIO(digits[0])))
    for invert, expected in (("auto", True), ("no", False), ("yes", True)):
        [image] = request(address, "POST", f"{PREDICT}?invert={invert}", png(pixels)).json["images"]
        assert image["inverted"] == expected
        assert (image["fast"]["name"] == "7") == expected


@pytest.mark.parametrize(
    ("path", "body", "content_type", "status", "words"),
    [
        (PREDICT, b"", "image/png", 422, "the request has no picture"),
        (PREDICT, b"GIF89a", "image/png", 422, "the picture is damaged or of an unknown format"),
        (PREDICT, b"{", "application/json", 422, 'no JSON, expected {"images"'),
        (PREDICT, b"[" * 100_000, "application/json", 422, "no JSON"),
        (PREDICT, b'{"images": [1]}', "application/json", 422, "no list of strings under images"),
        (PREDICT, b'{"images": ["!"]}', "application/json", 422, "images[0] is no base64"),
        (PREDICT, b'{"images": []}', "application/json", 422, "the request has no picture"),
        (PREDICT, b'{"images": %s}' % json.dumps(["aaaa"] * 9).encode(), "application/json", 413, "9 pictures, exp"),
        (PREDICT, multipart(*[("a", b"x")] * 9)[0], "multipart/form-data; boundary=limit", 413, "more than 8 pict"),
        (PREDICT, b"x", "multipart/form-data", 422, "the multipart body is damaged"),
        (PREDICT, b"x" * 2**21, "image/png", 413, "more than 1,048,576 bytes: send fewer or smaller pictures"),
        (PREDICT, png(np.zeros((1001, 1000), np.uint8)), "image/png", 422, "has 1,001,000 pixels, expected at most"),
        (
            PREDICT,
            png(np.zeros((20_000, 1), np.uint8)),
            "image/png",
            422,
            "has 1×20,000 pixels, expected at most 16,384",
        ),
        (PREDICT + "?routing=both", b"x", "image/png", 422, "mnist has no such routing here, expected one of fast"),
        (PREDICT + "?invert=maybe", b"x", "image/png", 422, "invert has an unknown value, expected one of auto, yes"),
        ("/v1/models/letters/predict", b"x", "image/png", 404, "there is no such network, expected one of mnist"),
        ("/v1/models/mnist/explore", b"x", "image/png", 422, "mnist has no PyTorch network on this server"),
        ("/nowhere", b"", "image/png", 404, "there is nothing at this address: see /docs"),
        ("/healthz", b"", "image/png", 405, "this address takes another method: see /docs"),
    ],
)
def test_refusals_are_one_sentence(address, path, body, content_type, status, words):
    response = request(address, "POST", path, body, content_type=content_type)
    assert (response.status, list(response.json)) == (status, ["error"])
    assert words in response.json["error"]


def test_a_chunked_body_is_limited_too(address):
    connection = http.client.HTTPConnection(address.removeprefix("http://"))
    connection.request("POST", PREDICT, (b"x" * 2**16 for _ in range(20)), encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


def test_networks_describe_themselves(address):
    [model] = request(address, "GET", "/v1/models").json["models"]
    assert (model["name"], model["routings"], model["explore"]) == ("mnist", ["fast"], False)
    assert model["input"] == {"channels": 1, "height": 28, "width": 28}
    card = request(address, "GET", "/v1/models/mnist").json["card"]
    assert card["accuracy"]["accuracy"] > 0.99
    assert card["config"]["iterations"] == 3


def test_health_metrics_and_documentation(address, digits):
    assert request(address, "GET", "/healthz").json == {"status": "alive", "fastcaps": __version__}
    assert request(address, "GET", "/readyz").json == {"status": "ready"}
    request(address, "POST", PREDICT, digits[0])
    text = request(address, "GET", "/metrics").content.decode()
    assert re.search(r'fastcaps_requests_total\{endpoint="predict",status="200"\} [1-9]', text)
    assert re.search(r'fastcaps_batch_images_count\{model="mnist",routing="fast"\} [1-9]', text)
    assert 'fastcaps_queue_images{model="mnist",routing="fast"} 0.0' in text
    assert 'fastcaps_request_seconds_bucket{endpoint="predict",le="0.1"}' in text


def test_every_address_is_documented(address):
    document = request(address, "GET", "/openapi.json").json
    for path, operations in document["paths"].items():
        for method in operations:
            response = request(address, method.upper(), path.replace("{name}", "mnist"))
            assert response.status in (200, 422), path
            assert str(response.status) in operations[method]["responses"]
            described = operations[method]["responses"][str(response.status)]["content"]
            schema = described.get("application/json", {"schema": {}})["schema"]
            if "$ref" in schema:
                expected = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
                assert set(expected["required"]) <= set(response.json) <= set(expected["properties"])


def test_security_headers(address):
    for path in ("/", "/docs", "/v1/models", "/nowhere"):
        headers = request(address, "GET", path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers
    assert "access-control-allow-origin" not in request(address, "GET", "/v1/models", origin="http://elsewhere").headers


def test_no_file_outside_of_the_page_is_served(address):
    for path in (
        "/static/../api.py",
        "/static/%2e%2e%2fapi.py",
        "/static/..%2f..%2f..%2fetc%2fpasswd",
        "/static/api.py",
    ):
        assert request(address, "GET", path).status == 404


def test_an_api_key(mnist, digits):
    with background({"mnist": mnist}, Settings(api_key="secret")) as address:
        for headers in ({}, {"x_api_key": "wrong"}, {"authorization": "Bearer secrets"}, {"x_api_key": "sécret"}):
            response = request(address, "POST", PREDICT, digits[0], **headers)
            assert (response.status, response.headers["www-authenticate"]) == (401, "Bearer")
            assert response.json["error"].startswith("the API key is missing or wrong")
        assert request(address, "GET", "/metrics").status == 401
        for headers in ({"x_api_key": "secret"}, {"authorization": "Bearer secret"}):
            assert request(address, "POST", PREDICT, digits[0], **headers).status == 200
        assert request(address, "GET", "/healthz").status == request(address, "GET", "/").status == 200


def test_without_the_page(mnist):
    with background({"mnist": mnist}, Settings(page=False)) as address:
        assert request(address, "GET", "/").status == request(address, "GET", "/docs").status == 404
        assert request(address, "GET", "/v1/models").status == 200


def test_names_of_networks(tmp_path):
    with pytest.raises(ValueError, match="two networks are called mnist: give one another name, as other=mnist"):
        open_models(["mnist", "mnist"], pytorch=False)
    assert list(open_models(["digits=mnist", "mnist"], threads=1, pytorch=False)) == ["digits", "mnist"]
    with pytest.raises(ValueError, match="'a b' can't be part of an address: name the network, as digits="):
        open_model(str(tmp_path / "a b"))
    with pytest.raises(FileNotFoundError, match="letters is no file that fastcaps export made, no run folder and not "):
        open_model("letters")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_batch": 0}, "max_batch is 0, expected at least 1"),
        ({"max_wait_ms": -1.0}, "max_wait_ms is -1.0, expected at least 0"),
        ({"queue": 8}, "queue is 8, max_images is 64: a request has to fit into the queue"),
        ({"api_key": ""}, "api_key is empty, expected a key, or None"),
    ],
)
def test_settings_that_let_nothing_through(change, words):
    with pytest.raises(ValueError, match=words):
        Settings(**change)


def test_a_port_that_is_taken(address):
    port = address.rpartition(":")[2]
    result = CliRunner().invoke(app, ["serve", "mnist", "--port", port])
    assert result.exit_code == 1
    assert (
        f"error: can't listen on http://127.0.0.1:{port}: Address already in use; choose another port" in result.stderr
    )


def test_the_client_of_the_documentation(address, digits, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "seven.png").write_bytes(digits[0])
    page = (Path(__file__).parent.parent.parent / "docs" / "serving.md").read_text()
    [client] = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "urllib" in code]
    exec(client.replace("http://127.0.0.1:8000", address))
    assert capsys.readouterr().out.startswith("7 0.908")
