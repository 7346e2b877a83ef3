"""Progress of long work in a log."""

from fastcaps import _progress


def test_progress_in_a_log_is_a_line_now_and_then_and_at_the_end(monkeypatch, capsys):
    now = iter([0.0, 10.0, 31.0, 31.0, 40.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    with _progress.progress_bar("counting", 3000) as count:
        count(1000)
        assert capsys.readouterr().err == ""
        count(1000)
        assert capsys.readouterr().err == "counting 2,000/3,000\n"
        count(1000)
    assert capsys.readouterr().err == "counting 3,000/3,000\n"
