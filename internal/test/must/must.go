// Package must ends a test at the first step that fails although it does not concern what the test checks.
package must

// test is a *testing.T, a *testing.B or a *rapid.T.
type test interface {
	Helper()
	Fatal(args ...any)
}

// Succeed fails the test if err is not nil.
func Succeed(t test, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
