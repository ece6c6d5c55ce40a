package await

import "testing"

func TestTheLastStateIsReported(t *testing.T) {
	t.Parallel()
	state, read := struct{ Held int }{3}, func() string { return "the page" }
	if got, want := lastState([]any{&state, read}), "; last seen: {Held:3}; last seen: the page"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
