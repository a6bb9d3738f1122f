"""A run's output: kept from its beginning and to its end, read on from any offset."""

from deploy.onbox.output import OutputLog, end_of, read_all, read_from, segments, tail


def test_it_is_capped_and_keeps_both_ends(tmp_path):
    log = OutputLog(str(tmp_path), segment=1000, kept=3)
    lines = [b"line %06d\n" % number for number in range(1000)]
    for line in lines:
        log.write(line)
    log.close()
    whole = b"".join(lines)
    assert end_of(str(tmp_path)) == len(whole)
    assert len(segments(str(tmp_path))) == 4
    assert read_from(str(tmp_path), 0, 100) == (0, whole[:100])
    begin, data = read_from(str(tmp_path), 5000, 1 << 20)
    assert begin > 5000 and data == whole[begin : begin + len(data)]
    assert tail(str(tmp_path), 2) == ["line 000998", "line 000999"]


def test_a_second_writer_goes_on_where_the_first_ended(tmp_path):
    for word in (b"one\n", b"two\n", b"three\n"):
        log = OutputLog(str(tmp_path), segment=8, kept=9)
        log.write(word)
        log.close()
    assert b"".join(data for _, data in read_all(str(tmp_path), 0)) == b"one\ntwo\nthree\n"
    assert read_from(str(tmp_path), 4, 100) == (4, b"two\n")
    assert read_from(str(tmp_path), 14, 100) == (14, b"")
