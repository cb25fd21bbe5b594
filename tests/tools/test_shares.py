from pathlib import Path

from tests.tools.shares import main

REPORT = """<testsuites><testsuite>
<testcase classname="tests.ops.test_review" name="a" time="9"><properties>
<property name="processor_s" value="3.5"/></properties></testcase>
<testcase classname="tests.ops.save.test_save.TestIt" name="b" time="9"><properties>
<property name="processor_s" value="2.5"/></properties></testcase>
<testcase classname="tests.cli.test_log" name="c" time="9"><properties>
<property name="processor_s" value="1.5"/></properties></testcase>
<testcase classname="tests.test_layout" name="d" time="9"><properties>
<property name="processor_s" value="0.5"/></properties></testcase>
</testsuite></testsuites>"""


def test_the_table_has_the_tests_and_the_share_of_each_room(tmp_path: Path) -> None:
    report, page = tmp_path / "tests.xml", tmp_path / "page.md"
    report.write_text(REPORT)
    page.write_text("Before.\n\n<!-- shares: begin -->\nold\n<!-- shares: end -->\n\nAfter.\n")

    main(report, page)

    text = page.read_text()
    assert text.startswith("Before.\n\n<!-- shares: begin -->\n\n| Room ")
    assert text.endswith("|\n\n<!-- shares: end -->\n\nAfter.\n")
    assert [line for line in text.splitlines() if "tests" in line] == [
        "| `tests/ops` | 1 | 43.8% |",
        "| `tests/ops/save` | 1 | 31.2% |",
        "| `tests/cli` | 1 | 18.8% |",
        "| `tests` | 1 | 6.2% |",
    ]
