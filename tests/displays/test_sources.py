"""`SourceDisplay`: positions, numbers, outline and path of what it draws."""

from types import SimpleNamespace

import numpy as np
import pytest

import extras

extras.require("matplotlib")

from matplotlib import pyplot as plt

from lucidae.displays import NoisePathDisplay, SourceDisplay


@pytest.fixture
def points():
    return np.random.default_rng(0).uniform(-0.07, 0.07, size=(50, 3))


def test_each_projection_shows_two_coordinates_in_millimetres(points):
    display = SourceDisplay(points[:3], [1.0, 3.0, 2.0], candidates=points).plot()
    for axes, pair in zip(display.ax_, ([0, 1], [0, 2], [1, 2]), strict=True):
        offsets = axes.collections[0].get_offsets()
        np.testing.assert_allclose(offsets, 1e3 * points[:3, pair])
        (outline,) = axes.patches
        corners = outline.get_xy()
        np.testing.assert_allclose(corners.max(axis=0), 1e3 * points[:, pair].max(axis=0))
        np.testing.assert_allclose(corners.min(axis=0), 1e3 * points[:, pair].min(axis=0))


def test_numbers_follow_the_strengths_and_areas_grow_with_them(points):
    display = SourceDisplay(points[:3], [1.0, 3.0, 2.0]).plot()
    assert display.order_.tolist() == [1, 2, 0]
    texts = {text.get_text(): text.xy for text in display.ax_[0].texts}
    np.testing.assert_allclose(texts["1"], 1e3 * points[1, :2])
    np.testing.assert_allclose(texts["3"], 1e3 * points[0, :2])
    areas = display.ax_[0].collections[0].get_sizes()
    assert np.argsort(-areas).tolist() == [1, 2, 0]


def drawn_numbers(axes):
    """Return the texts of one projection that are numbers, as artists."""
    return [text for text in axes.texts if text.get_text().isdigit()]


def test_only_the_strongest_of_many_sources_are_numbered(points):
    strengths = np.arange(50.0) + 1.0
    display = SourceDisplay(points, strengths, orientations=np.tile([1.0, 0, 0], (50, 1))).plot()
    for axes in display.ax_:
        assert {int(text.get_text()) for text in drawn_numbers(axes)} == set(range(1, 21))
        assert len(axes.lines) == 20
        assert len(axes.collections[0].get_offsets()) == 50
    texts = [text.get_text() for text in display.ax_[1].texts]
    assert "numbers: the first 20 of 50" in texts


def test_a_patch_is_its_vertices_in_one_colour_with_one_number_at_its_centre(points):
    patches = [points[[0]], points[10:14]]
    display = SourceDisplay(points[[0, 12]], [3.0, 2.0], patches=patches).plot()
    assert display.order_.tolist() == [
        1,
        0,
    ]  # the amplitudes of the four vertices have a larger sum
    for axes, pair in zip(display.ax_, ([0, 1], [0, 2], [1, 2]), strict=True):
        circles = axes.collections[0]
        np.testing.assert_allclose(
            circles.get_offsets(), 1e3 * points[[0, 10, 11, 12, 13]][:, pair]
        )
        assert circles.get_array().tolist() == [3.0, 2.0, 2.0, 2.0, 2.0]
        assert len(set(circles.get_sizes()[1:])) == 1
        places = {text.get_text(): text for text in drawn_numbers(axes)}
        assert sorted(places) == ["1", "2"]
        np.testing.assert_allclose(places["1"].xy, 1e3 * points[12, pair])
        assert places["1"].xyann == (0, 0)


def test_names_are_listed_below_the_projections_without_a_path(points):
    display = SourceDisplay(points[:2], [1.0, 3.0], names=["lh 4", "rh 9"]).plot()
    (listed,) = display.figure_.legends
    assert [text.get_text() for text in listed.get_texts()] == ["1: rh 9", "2: lh 4"]
    assert not SourceDisplay(points[:2], [1.0, 3.0]).plot().figure_.legends
    assert not SourceDisplay.from_result(simulated_result(points)).figure_.legends


def test_a_path_without_sources_says_so_beside_its_line():
    empty = NoisePathDisplay(
        [4.0, 2.0, 1.0], [], np.zeros((0, 3)), marks={"noise variance of the fit": 2.0},
        noun="source",
    )  # fmt: skip
    display = SourceDisplay(np.zeros((0, 3)), [], path=empty).plot()
    display.figure_.canvas.draw()
    below = display.ax_[3]
    (text,) = below.texts
    assert text.get_text() == "no source is significant"
    (line,) = below.lines
    path = line.get_path().transformed(line.get_transform())
    assert not path.intersects_bbox(text.get_window_extent(), filled=False)
    assert below.get_ylabel() == ""


def simulated_result(points):
    """Return an object with the attributes of a result: sources 4 and 9, two columns each."""
    labels = np.repeat(np.arange(len(points)), 2)
    contributions = np.zeros((3, labels.size))
    contributions[1:, 8:10] = [[0.5], [0.4]]
    contributions[2, 18:20] = 0.2
    contributions[0, 40:42] = 0.1
    supports = [np.array([40, 41]), np.array([8, 9]), np.array([8, 9, 18, 19])]

    class Path(SimpleNamespace):
        def __len__(self):
            return 3

    path = Path(
        noise_variances=np.array([4.0, 2.0, 1.0]), supports=supports, contributions=contributions
    )
    found = [
        SimpleNamespace(
            name=f"lh {source}", positions=points[[source]], position=points[source],
            amplitude=size, direction=direction, doubtful=source == 4,
        )
        for source, size, direction in zip((9, 4), (2e-9, 8e-9), np.eye(3), strict=False)
    ]  # fmt: skip
    return SimpleNamespace(
        amplitudes=np.zeros((2, 3, 5)),
        positions=points[[4, 9]],
        forward={"source_rr": points},
        found_sources=found,
        groups=np.array([9, 4]),
        group_name=lambda label: f"lh {label}",
        noise_variance=1.0,
        noise_path=lambda: path,
        estimate=SimpleNamespace(
            labels=labels, groups=np.array([4, 9]), selected_along=lambda path: path.supports
        ),
    )


def test_result_is_drawn_with_its_path(points):
    display = SourceDisplay.from_result(simulated_result(points))
    np.testing.assert_allclose(display.strengths, [2.0, 8.0])  # nA·m
    assert [text.get_text() for text in display.ax_[0].texts] == ["1", "2?"]  # 2 is doubtful
    np.testing.assert_allclose(display.orientations, [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    assert display.path.columns.tolist() == [9, 4, 20]
    assert display.path.names == ["1: lh 9", "2?: lh 4", "lh 20"]
    expected = [[np.nan, np.nan, 0.2], [np.nan, 0.5, 0.4], [0.1, np.nan, np.nan]]
    np.testing.assert_array_equal(display.path.contributions, expected)
    assert display.path.marks == {"noise variance of the fit": 1.0}
    assert len(display.ax_) == 4
    assert display.ax_[3].get_ylabel() == "source"
    assert display.ax_[3].get_xlabel() == "noise variance (*: intermittent source)"


def test_path_can_be_left_out_or_shortened(points):
    result = simulated_result(points)
    assert SourceDisplay.from_result(result, path=False).path is None
    short = SourceDisplay.from_result(result, path=result.noise_path(), max_sources=1)
    assert short.path.names == ["1: lh 9"]
    assert short.ax_[3].get_ylabel() == "source (1 of 3)"


def test_other_objects_than_a_result_are_refused(points):
    result = simulated_result(points)
    stc = SimpleNamespace(vertices=[np.array([2])], data=np.zeros((1, 4)))
    words = r"expected a SourceResult, which sparse_vae\(\.\.\., return_result=True\) returns"
    with pytest.raises(ValueError, match=f"SimpleNamespace, {words}; SourceDisplay.from_stc draws"):
        SourceDisplay.from_result(stc)
    with pytest.raises(ValueError, match=rf"result is of type NoneType, {words}\."):
        SourceDisplay.from_result(None)
    with pytest.raises(ValueError, match=f"a list of 2 results, {words} .* such as result"):
        SourceDisplay.from_result([result, result])


def test_source_estimate_is_drawn_at_the_vertices_of_its_space(points):
    spaces = [
        {"type": "surf", "id": 101, "rr": points, "vertno": np.arange(0, 50, 2)},
        {"type": "surf", "id": 102, "rr": -points, "vertno": np.arange(50)},
    ]
    stc = SimpleNamespace(vertices=[np.array([2, 4]), np.array([7])], data=np.zeros((3, 4)))
    stc.data[[0, 2], 1] = [1e-9, -3e-9]
    display = SourceDisplay.from_stc(stc, spaces)
    np.testing.assert_allclose(display.positions, [points[2], -points[7]])
    np.testing.assert_allclose(display.strengths, [1.0, 3.0])
    assert display.names == ["lh 2", "rh 7"]
    assert len(display.candidates) == 75
    vector = SimpleNamespace(vertices=stc.vertices, data=np.zeros((3, 3, 4)))
    vector.data[0, :, 2] = [3e-9, 0.0, 4e-9]
    assert SourceDisplay.from_stc(vector, {"src": spaces}).strengths.tolist() == [
        pytest.approx(5.0)
    ]
    with pytest.raises(ValueError, match="2 source spaces, but src has 1"):
        SourceDisplay.from_stc(stc, spaces[:1])


def test_a_result_without_sources_is_drawn(points):
    display = SourceDisplay(np.zeros((0, 3)), [], candidates=points).plot()
    assert [text.get_text() for text in display.ax_[0].texts] == ["no source"]
    SourceDisplay(np.zeros((0, 3)), []).plot()


def test_candidates_without_an_area_are_points(points):
    line = np.column_stack([np.arange(4.0), np.zeros(4), np.zeros(4)]) / 100
    display = SourceDisplay(line[:1], [1.0], candidates=line).plot()
    assert not display.ax_[0].patches
    assert display.ax_[0].lines[0].get_marker() == "."


def test_it_draws_on_given_axes_and_refuses_other_numbers_of_them(points):
    _, axes = plt.subplots(1, 3)
    assert SourceDisplay(points[:1], [1.0]).plot(ax=axes, alpha=0.5).ax_[0] is axes[0]
    assert len(plt.get_fignums()) == 1
    with pytest.raises(ValueError, match=r"ax has 2 axes, expected 3, for three projections\."):
        SourceDisplay(points[:1], [1.0]).plot(ax=axes[:2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"positions": np.zeros((2, 2))}, r"positions has shape \(2, 2\), expected \(n, 3\)"),
        ({"strengths": [1.0]}, "strengths has 1 entries, but positions has 2 rows"),
        ({"orientations": np.zeros((1, 3))}, "orientations has 1 entries, but positions has 2"),
        ({"candidates": np.zeros(3)}, "candidates has shape"),
        ({"patches": [np.zeros((4, 3))]}, "patches has 1 entries, but positions has 2 rows"),
    ],
)
def test_arrays_of_other_shapes_are_refused(arguments, message):
    given = {"positions": np.zeros((2, 3)), "strengths": [1.0, 2.0], **arguments}
    with pytest.raises(ValueError, match=message):
        SourceDisplay(**given)
