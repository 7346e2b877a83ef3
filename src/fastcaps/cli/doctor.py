"""``fastcaps doctor``: what is installed, where things are, and what is missing."""

from fastcaps.cli._common import Json, command, print_result


@command
def doctor(as_json: Json = False) -> None:
    """Show versions, processor, memory and folders, and say what is missing and how to get it.

    Example:  fastcaps doctor
    """
    from fastcaps import workflows

    print_result(workflows.doctor(), as_json)
