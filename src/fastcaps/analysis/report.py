"""A run as one HTML page that opens from disk: every figure inlined, every number one of ``analysis.json``.

Knows neither NumPy nor matplotlib: it gets plain values and pictures. A number on the page is made by `_Numbers`, which
looks it up and writes beside it where it was found, so that page and file can't differ.
"""

import base64
import html
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fastcaps._page import html_table, page
from fastcaps.analysis.results import MEANINGS, Evaluation

# Pixels of a picture for one of the page: pictures are drawn at 200 to the inch, a page has 96.
_SCALE = 200 / 96


class _Numbers:
    """Numbers of an analysis as HTML, each with the place it has in ``analysis.json``."""

    def __init__(self, numbers: Mapping[str, Any]) -> None:
        self.numbers = numbers

    def value(self, path: str) -> Any:
        found: Any = self.numbers
        for step in path.split("/"):
            found = found[int(step)] if isinstance(found, list) else found[step]
        return found

    def __call__(self, path: str, form: str = "") -> str:
        """A number, formatted; words are only escaped."""
        value = self.value(path)
        if isinstance(value, str):
            return html.escape(value)
        if value is None:
            return "not defined"
        text = format(value, form).replace("-", "−")
        return f'<data value="{value!r}" data-path="{path}" data-format="{form}">{text}</data>'

    def rows(self, path: str) -> range:
        return range(len(self.value(path)))


class _Picture(NamedTuple):
    """A figure of the page: its name and title, what it shows in a word, what to look for, what is seen here."""

    name: str
    title: str
    alt: str
    see: str
    here: str


def report_page(numbers: Mapping[str, Any], pictures: Mapping[str, bytes]) -> str:
    """The page of an analysis.

    Args:
        numbers: what ``analysis.json`` says.
        pictures: for each figure's name a PNG.
    """
    n = _Numbers(numbers)
    sections = list(_sections(n))
    evaluation = numbers["evaluation"]
    generated = " (generated images)" if evaluation["generated"] else ""
    partly = ""
    if numbers["settings"]["limit"] is not None:
        partly = f" <strong>A trial with the first {n('settings/limit', ',')} images only.</strong>"
    contents = "".join(f'<li><a href="#{key}">{html.escape(title)}</a></li>' for key, title, _, _ in sections)
    body = "".join(
        f'<section id="{key}"><h2>{html.escape(title)}</h2>{words}'
        + "".join(_figure(picture, pictures[picture.name]) for picture in shown if picture.name in pictures)
        + "</section>"
        for key, title, words, shown in sections
    )
    return page(
        f"{numbers['run']}: routing coefficients of {evaluation['data']}",
        f"""<header><h1>{html.escape(numbers["run"])}</h1>
<p class="about">A capsule network on {html.escape(evaluation["data"])}{generated}:
{n("network/lower_capsules", ",")} lower capsules, {n("network/classes")} classes,
{n("network/iterations")} iterations of
{html.escape(numbers["network"]["normalization_title"])} routing.
Coefficients of {n("training/images", ",")} training images, accuracies
on {n("evaluation/images", ",")} {evaluation["part"]} images.{partly}</p>
<p class="verdict">{html.escape(Evaluation.from_dict(evaluation).verdict())}</p></header>
{_variants(n)}
<nav aria-label="Contents"><ol>{contents}</ol></nav>
<main>{body}</main>
<footer>{_provenance(n)}</footer>
""",
    )


def _variants(n: _Numbers) -> str:
    """The table of the ways of routing."""
    rows = []
    for name, variant in n.value("evaluation/variants").items():
        path = f"evaluation/variants/{name}"
        changed, speed = "", ""
        if variant["against_dynamic"]:
            against = f"{path}/against_dynamic"
            changed = f"{n(f'{against}/changed', ',')} (+{n(f'{against}/gained')} −{n(f'{against}/lost')})"
        if variant["images_per_second"]:
            speed = n(f"{path}/images_per_second", ",.0f")
        interval = f"{n(f'{path}/interval/0', '.2%')} – {n(f'{path}/interval/1', '.2%')}"
        title = f"<strong>{name}</strong><br><small>{MEANINGS[name]}</small>"
        rows.append([title, n(f"{path}/accuracy", ".2%"), speed, n(f"{path}/errors", ","), changed, interval])
    head = ["routing", "accuracy", "images/s", "errors", "answers changed", "95 % interval"]
    threads = "thread" if n.value("evaluation/threads") == 1 else "threads"
    return (
        html_table(head, rows) + f"<p><small>Speeds on {n('evaluation/threads')} {threads}, in batches of "
        f"{n('evaluation/batch_size')}.</small></p>"
    )


def _sections(n: _Numbers) -> Iterator[tuple[str, str, str, list[_Picture]]]:
    """Key, title, words and figures of each part of the page."""
    yield "network", "The network", "", [_architecture(n)]
    yield (
        "dynamic-coefficients",
        "Dynamic coefficients",
        "<p>Each image has a coefficient matrix; the column of its own class is its <em>ground-truth column</em>. If "
        "images of a class are routed alike, these columns correlate within a class and not between classes.</p>",
        [_image_correlations(n), _class_correlations(n), _histogram(n)],
    )
    yield (
        "master-coefficients",
        "Master coefficients",
        "<p>One matrix for all images, made of the training images' matrices, takes the place of the loop.</p>",
        [_procedure(n), _matrix(n), _positions(n), _types(n), _master_correlations(n)],
    )
    yield (
        "outputs",
        "What comes out: dynamic beside fast",
        "<p>The length of a class capsule says how sure the network is that the class is there.</p>",
        [_examples(n), _tuning(n), _confusion(n)],
    )
    yield "disagreements", "Where dynamic and fast disagree", _disagreement_words(n), [_disagreements(n)]
    yield (
        "dimensions",
        "What the numbers of a class capsule mean",
        "<p>The decoder draws an image from the capsule of its class. Changing one of the capsule's numbers and "
        "drawing again shows what that number stands for.</p>",
        list(_dimensions(n)),
    )


def _architecture(n: _Numbers) -> _Picture:
    c = n.value("network")
    stages = f"{c['height']}×{c['width']}×{c['channels']} image, {c['stem_size'][0]}×{c['stem_size'][1]}×"
    stages += f"{c['stem_channels']} maps, {c['lower_capsules']} lower capsules, {c['classes']} class capsules"
    return _Picture(
        "architecture",
        "From image to class",
        f"The network's layers as blocks: {stages}; a decoder below",
        "From left to right the way of an image. Between the lower and the class capsules there are two ways: the "
        "loop, or one matrix product.",
        f"{n('network/lower_capsules', ',')} lower capsules of {n('network/lower_dimension')} numbers vote for "
        f"{n('network/classes')} classes of {n('network/class_dimension')}; the loop runs {n('network/iterations')} "
        "times.",
    )


def _image_correlations(n: _Numbers) -> _Picture:
    order = "sorted by class" if n.value("first_images/sorted_by_class") else "in the order of the set"
    see = (
        "Red squares along the diagonal, one for each class, and pale fields beside them."
        if n.value("first_images/sorted_by_class")
        else "Single red points where two images are of one class, pale elsewhere."
    )
    return _Picture(
        "image_correlations",
        "Single images",
        f"Heatmap of correlations between single training images, {order}, lower triangle",
        f"{see} Red is positive, blue negative, white none.",
        f"Among the first {n('first_images/images')} training images two of one class correlate with "
        f"{n('first_images/within', '.2f')} on average, two of different classes with "
        f"{n('first_images/between', '.2f')}; the lowest of all pairs is {n('first_images/lowest', '.2f')}.",
    )


def _extremes(n: _Numbers, path: str) -> str:
    low, high = n.value(f"{path}/least_alike"), n.value(f"{path}/most_alike")
    if low is None or low == high:
        return ""
    return (
        f" (from {n(f'{path}/least_alike/correlation', '.2f')} for {html.escape(low['class'])} to "
        f"{n(f'{path}/most_alike/correlation', '.2f')} for {html.escape(high['class'])})"
    )


def _class_correlations(n: _Numbers) -> _Picture:
    path = "class_correlations"
    closest = ""
    if n.value(f"{path}/closest_pair"):
        closest = (
            f" Of different classes, {n(f'{path}/closest_pair/classes/0')} and {n(f'{path}/closest_pair/classes/1')} "
            f"are most alike ({n(f'{path}/closest_pair/correlation', '.2f')})."
        )
    return _Picture(
        path,
        "Classes",
        "Heatmap of mean correlations between the classes' ground-truth columns, lower triangle, with values",
        "Ideally a diagonal that stands out: images of a class are routed alike. What stands out beside it are "
        "classes that share parts. Every value is the mean over all pairs of training images, an image with itself "
        "left out.",
        f"Within a class the mean is {n(f'{path}/within', '.2f')}{_extremes(n, path)}, between classes "
        f"{n(f'{path}/between', '.2f')}; for {n(f'{path}/own_is_highest')} of {n('network/classes')} classes the own "
        f"correlation is the highest.{closest} The other class each is most like: {n(f'{path}/in_words')}."
        + _nearest(n, path, "with itself"),
    )


def _master_correlations(n: _Numbers) -> _Picture:
    path = "master_correlations"
    return _Picture(
        path,
        "Does each master column fit its own class?",
        "Heatmap of mean correlations of master columns with images of each class, with values",
        "Each column of the master matrix against the ground-truth columns of all training images of each class, on "
        "the same scale as above; not symmetric. A master column should fit its own class only.",
        f"A master column correlates with images of its own class with {n(f'{path}/within', '.2f')} on "
        f"average{_extremes(n, path)}, with those of other classes with {n(f'{path}/between', '.2f')}; for "
        f"{n(f'{path}/own_is_highest')} of {n('network/classes')} columns its own class is the highest. "
        f"The other class each fits best: {n(f'{path}/in_words')}." + _nearest(n, path, "own class"),
    )


def _nearest(n: _Numbers, path: str, own: str) -> str:
    """The second-highest correlation of each class, in words."""
    rows = []
    for k in n.rows(f"{path}/nearest"):
        others = [
            f"{n(f'{path}/nearest/{k}/others/{m}/class')} ({n(f'{path}/nearest/{k}/others/{m}/correlation', '.3f')})"
            for m in n.rows(f"{path}/nearest/{k}/others")
        ]
        rows.append(
            [n(f"{path}/nearest/{k}/class"), n(f"{path}/nearest/{k}/own", ".3f"), *others, *[""] * (2 - len(others))]
        )
    return html_table(["class", own, "most like", "then"], rows)


def _histogram(n: _Numbers) -> _Picture:
    texts = [_spread(n, "coefficients", "In this run")]
    if "compared" in n.numbers:
        texts.append(_spread(n, "compared", f"In {n('compared/run')}"))
    return _Picture(
        "coefficients",
        "How coefficients are spread",
        "Histograms of the routing coefficients in each iteration, logarithmic shares",
        "All start alike. Max-Min spreads them between its bounds, softmax leaves most of them where they were, "
        "around one over the number of classes. The shares are logarithmic.",
        " ".join(texts),
    )


def _spread(n: _Numbers, path: str, where: str) -> str:
    last = len(n.value(f"{path}/mean")) - 1
    return (
        f"{where} ({n.value(f'{path}/normalization_title')}) coefficients start at {n(f'{path}/start', '.3g')}; in "
        f"the last iteration {n(f'{path}/near_start/{last}', '.1%')} are within 0.05 of that, "
        f"{n(f'{path}/near_0/{last}', '.1%')} within 0.05 of 0 and {n(f'{path}/near_1/{last}', '.1%')} within 0.05 of "
        f"1; their mean is {n(f'{path}/mean/{last}', '.2f')}, their standard deviation "
        f"{n(f'{path}/deviation/{last}', '.2f')}."
    )


def _procedure(n: _Numbers) -> _Picture:
    reduced = (
        "The master matrix of this run is exactly that."
        if n.value("master/is_reduction")
        else "The master matrix of this run was made in another way, so its columns are not those of the containers."
    )
    return _Picture(
        "procedure",
        "How the master matrix is made",
        "Three steps: containers of summed coefficients, containers with normalised rows, the master matrix",
        "1: the coefficient matrices of each class's images are added up in the class's container. 2: each container "
        "is divided by its count and its rows normalised. 3: of each container only its own class's column "
        "(outlined) goes into the master matrix. Rows are lower capsules, columns are classes.",
        f"Drawn from this run's own containers; the classes between are not drawn. {reduced}",
    )


def _matrix(n: _Numbers) -> _Picture:
    return _Picture(
        "master_matrix",
        "The master matrix",
        "The master matrix as an image, and a histogram of its values",
        "Stripes that differ from class to class: a capsule counts for some classes and not for others.",
        f"The mean is {n('master/mean', '.2f')}, the standard deviation {n('master/deviation', '.2f')}; "
        f"{n('master/below_low', '.1%')} of the coefficients are below {n('master/low', '.2g')}, "
        f"{n('master/above_high', '.1%')} above {n('master/high', '.2g')}.",
    )


def _positions(n: _Numbers) -> _Picture:
    return _Picture(
        "positions",
        "Where a class's parts are",
        "For each class its mean image beside a map of its mean master coefficients by position",
        "Left each class's mean image, right the mean over the capsule types at each position: bright where capsules "
        "count in full for the class, dark where most of them are kept out.",
        f"The map varies most for {n('positions/most_varied/class')} (by {n('positions/most_varied/range', '.2f')} "
        f"between its lowest and highest position), least for {n('positions/least_varied/class')} "
        f"({n('positions/least_varied/range', '.2f')}). Of {n('positions/highest/0/class')} the highest is in row "
        f"{n('positions/highest/0/row')}, column {n('positions/highest/0/column')} of the grid "
        f"({n('positions/highest/0/mean', '.2f')}).",
    )


def _types(n: _Numbers) -> _Picture:
    return _Picture(
        "types",
        "Position by position, type by type",
        "Classes as rows, capsule types as columns, each cell a map of positions",
        "The same matrix laid out by position: each small map is one capsule type for one class. A type with a "
        "different pattern in each row tells classes apart.",
        f"{n('network/classes')} classes, {n('network/capsule_types')} types, "
        f"{n('network/grid/0')}×{n('network/grid/1')} positions.",
    )


def _examples(n: _Numbers) -> _Picture:
    total = len(n.value("examples/images"))
    return _Picture(
        "examples",
        "Single test images",
        f"{total} test images, their reconstructions, and bars of the class capsules' lengths for both ways of routing",
        "Ideally a long bar at the true class (grey) and short ones elsewhere, the same in blue and orange.",
        f"Of these {total} test images dynamic routing has {n('examples/right_dynamic')} right, fast routing "
        f"{n('examples/right_fast')}; no length differs by more than {n('examples/largest_difference', '.2f')}.",
    )


def _tuning(n: _Numbers) -> _Picture:
    words = []
    for way in ("dynamic", "fast"):
        path = f"tuning/{way}"
        other = f"{path}/highest_other"
        words.append(
            f"{way}: {n(f'{path}/peaked_at_own')} of {n(f'{path}/classes')} curves have their peak at their own "
            f"class, mean length {n(f'{path}/own', '.2f')} there and {n(f'{path}/others', '.2f')} elsewhere, at most "
            f"{n(f'{other}/length', '.2f')} (capsule {n(f'{other}/capsule')} for images of {n(f'{other}/images')})"
        )
    return _Picture(
        "tuning",
        "Tuning curves",
        "For each class a curve of mean capsule lengths over its test images, dynamic and fast",
        "Ideally one peak, at the own class (grey), and both curves on top of each other. Other peaks are classes that "
        "compete.",
        ". ".join(word[0].upper() + word[1:] for word in words) + ".",
    )


def _confusion(n: _Numbers) -> _Picture:
    path = "evaluation/variants"
    return _Picture(
        "confusion",
        "What is taken for what",
        "Confusion matrices of dynamic and fast routing",
        "Rows are true classes, columns answers; what is off the diagonal are errors.",
        f"Dynamic routing makes {n(f'{path}/dynamic/errors', ',')} errors, fast routing "
        f"{n(f'{path}/fast/errors', ',')}, of {n('evaluation/images', ',')}.",
    )


def _disagreement_words(n: _Numbers) -> str:
    path = "disagreements"
    if not n.value(f"{path}/changed"):
        return f"<p>None of the {n(f'{path}/test_images', ',')} test images changes class.</p>"
    return (
        f"<p>{n(f'{path}/changed', ',')} of {n(f'{path}/test_images', ',')} test images change class. Right only with "
        f"fast routing: {n(f'{path}/gained', ',')}; right only with dynamic routing: {n(f'{path}/lost', ',')}; wrong "
        f"both times: {n(f'{path}/wrong_in_both', ',')}.</p>"
    )


def _disagreements(n: _Numbers) -> _Picture:
    path = "disagreements"
    return _Picture(
        path,
        "Images that change class",
        "Test images that change class, with bars of both sets of lengths",
        "Images that people hesitate over, too, with two capsules of about the same length.",
        f"The first {n(f'{path}/drawn')} of {n(f'{path}/changed', ',')}, in the order of the test set.",
    )


def _dimensions(n: _Numbers) -> Iterator[_Picture]:
    if not n.value("dimensions/classes"):
        return
    path = "dimensions/shown"
    yield _Picture(
        "dimensions",
        "All numbers of one capsule",
        f"Reconstructions of a test image of {n.value(f'{path}/class')} while one capsule number is varied, a row for "
        "each",
        "Each row changes one number: thickness, slant, width, a stroke that grows. A row that stays the same is a "
        "number that the decoder hardly uses for this class.",
        f"Test image {n(f'{path}/test_image', ',')}, of {n(f'{path}/class')}. Number {n(f'{path}/strongest')} changes "
        f"it most (root mean square {n(f'{path}/largest_effect', '.3f')} between the ends), number "
        f"{n(f'{path}/weakest')} least ({n(f'{path}/smallest_effect', '.3f')}).",
    )
    rows = ", ".join(
        f"{n(f'dimensions/classes/{k}/class')}: number {n(f'dimensions/classes/{k}/strongest')}"
        for k in n.rows("dimensions/classes")
    )
    yield _Picture(
        "strongest_dimensions",
        "The strongest number of each class",
        "For each class the reconstructions while its strongest number is varied",
        "One row a class: the number that changes its reconstruction most.",
        f"{rows}.",
    )


def _provenance(n: _Numbers) -> str:
    """Where everything comes from."""
    numbers = n.numbers
    versions = ", ".join(f"{name} {version}" for name, version in numbers["evaluation"]["versions"].items())
    entries = {
        "weights": numbers["settings"]["weights"],
        "images": numbers["settings"]["data_fingerprint"],
        "master coefficients": numbers["settings"]["master"],
        "versions": versions,
        "made by": numbers["settings"]["command"],
    }
    rows = "".join(f"<dt>{key}</dt><dd>{html.escape(str(value))}</dd>" for key, value in entries.items())
    words = "All numbers, arrays too, are in analysis.json beside this page."
    return f"<h2>Where it comes from</h2><dl>{rows}</dl><p>{words}</p>"


def _figure(picture: _Picture, png: bytes) -> str:
    width, height = (round(side / _SCALE) for side in struct.unpack(">II", png[16:24]))
    encoded = base64.b64encode(png).decode()
    # On a narrow screen a small figure shrinks to fit; in a wide one words would get too small, so it scrolls in a box.
    wide = width > 600
    least = f' style="min-width:{round(width * 0.75)}px"' if wide else ""
    hint = '<small class="hint">scrolls sideways →</small>' if wide else ""
    title = html.escape(picture.title)
    return (
        f'<figure id="{picture.name}"><h3>{title}</h3>{hint}'
        f'<div class="picture" tabindex="0" role="group" aria-label="{title}">'
        f'<img src="data:image/png;base64,{encoded}" width="{width}" height="{height}"{least} '
        f'alt="{html.escape(picture.alt)}"></div>'
        f'<figcaption><span class="see">{picture.see}</span> {picture.here}</figcaption></figure>'
    )
