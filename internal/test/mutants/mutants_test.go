package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/internal/test/mutation"
)

func TestSitesOfAFile(t *testing.T) {
	t.Parallel()
	found, err := findSitesInFile("a/b.go", []byte(`package b

func (t *T[K]) f(n int) error {
	if n < 3 {
		g(n)
	}
	if err := g(1); err != nil {
		return err
	}
	n += 2
	return nil
}
`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range found {
		got = append(got, s.String())
	}
	want := []string{
		"a/b.go:10 T.f: dropped statement: n += 2",
		"a/b.go:4 T.f: negated condition: n < 3 -> !(n < 3)",
		"a/b.go:4 T.f: shifted comparison: n < 3 -> n <= 3",
		"a/b.go:4 T.f: changed constant: 3 -> 4",
		"a/b.go:5 T.f: dropped statement: g(n)",
		"a/b.go:7 T.f: ignored error: err != nil -> false && err != nil",
		"a/b.go:7 T.f: changed constant: 1 -> 2",
		"a/b.go:10 T.f: changed constant: 2 -> 3",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestADrawIsRepeated checks that the same seed draws the same mistakes, and that another seed draws other mistakes.
func TestADrawIsRepeated(t *testing.T) {
	t.Parallel()
	draws := make([][]mutation.Mistake, 3)
	for i, seed := range []uint64{1, 1, 2} {
		var err error
		if draws[i], err = Draw("../../..", seed, 50); err != nil {
			t.Fatal(err)
		}
		if len(draws[i]) != 50 {
			t.Fatalf("%d mistakes, want 50", len(draws[i]))
		}
	}
	if diff := cmp.Diff(draws[0], draws[1]); diff != "" {
		t.Error(diff)
	}
	if cmp.Equal(draws[0], draws[2]) {
		t.Error("two seeds draw the same mistakes")
	}
}
