package main

import "testing"

// TestEachMistakeCanBeMade checks that each planted mistake can still be made: its function and the text to be
// replaced must exist.
func TestEachMistakeCanBeMade(t *testing.T) {
	t.Parallel()
	all, err := locateAll("../../..")
	if err != nil {
		t.Error(err)
	}
	if len(all) < 60 {
		t.Errorf("%d mistakes, want at least 60", len(all))
	}
	for _, m := range Mistakes() {
		if m.Breaks == "" {
			t.Errorf("%s %s names no promise", m.Package, m.Func)
		}
	}
}
