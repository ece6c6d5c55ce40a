package rig

import (
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

// Test is a running test, with the two checks that most steps of a test need.
type Test struct{ *testing.T }

// Await waits until holds returns true, like await.True.
func (t Test) Await(what string, holds func() bool, seen ...any) {
	t.Helper()
	await.True(t.T, what, holds, seen...)
}

// Must fails the test if err is not nil.
func (t Test) Must(err error) {
	t.Helper()
	must.Succeed(t, err)
}
