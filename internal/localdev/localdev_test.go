package localdev

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// announce writes the notice of a running server and keeps it reachable until the test ends. Otherwise the garbage
// collector would close its file, and the lock on it would be lost.
func announce(t *testing.T, s Server, dirs ...string) *Announcement {
	t.Helper()
	n, err := Announce(s, dirs...)
	must.Succeed(t, err)
	t.Cleanup(func() { _ = n.Withdraw() })
	return n
}

func TestAnnouncedServerIsFoundUntilWithdrawn(t *testing.T) {
	t.Parallel()
	first, second := filepath.Join(t.TempDir(), "deep", "first"), t.TempDir()
	s := Server{URL: "http://127.0.0.1:1", Token: "t"}
	n := announce(t, s, first, second)
	for _, dirs := range [][]string{{first}, {second}, {t.TempDir(), second}} {
		if got, err := Find(dirs...); err != nil || got != s {
			t.Errorf("%v: %+v, %v", dirs, got, err)
		}
	}
	info, err := os.Stat(filepath.Join(first, fileName))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v: it holds a token", info.Mode(), err)
	}
	must.Succeed(t, n.Withdraw())
	if _, err := Find(first, second); !errors.Is(err, ErrNoServer) {
		t.Errorf("%v, want ErrNone", err)
	}
	for _, dir := range []string{first, second} {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left in %s: %v, %v", dir, left, err)
		}
	}
}

// TestLeftFileIsNotBelieved checks the file of a dev that was killed: the file still exists, but is not locked, so it is not used.
func TestLeftFileIsNotBelieved(t *testing.T) {
	t.Parallel()
	dead, alive := t.TempDir(), t.TempDir()
	n := announce(t, Server{URL: "http://127.0.0.1:1", Token: "old"}, dead)
	must.Succeed(t, n.locks[0].Close())
	_, err := Find(dead)
	stale, ok := errors.AsType[*StaleError](err)
	if !ok || stale.File != filepath.Join(dead, fileName) || stale.URL != "http://127.0.0.1:1" {
		t.Errorf("%v, want a StaleError that names the file and the URL", err)
	}
	announce(t, Server{URL: "http://127.0.0.1:2"}, alive)
	if got, err := Find(dead, alive); err != nil || got.URL != "http://127.0.0.1:2" {
		t.Errorf("%+v, %v: one that runs goes before a file that was left", got, err)
	}
	announce(t, Server{URL: "http://127.0.0.1:3"}, dead)
	if got, err := Find(dead); err != nil || got.URL != "http://127.0.0.1:3" {
		t.Errorf("%+v, %v: the next one takes the place", got, err)
	}
}

func TestTheLaterOneKeepsItsFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	earlier := announce(t, Server{URL: "http://127.0.0.1:1"}, dir)
	announce(t, Server{URL: "http://127.0.0.1:2"}, dir)
	must.Succeed(t, earlier.Withdraw())
	if got, err := Find(dir); err != nil || got.URL != "http://127.0.0.1:2" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestWhatCannotBeWrittenSpoilsNothing(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	must.Succeed(t, os.WriteFile(file, nil, 0o600))
	good := t.TempDir()
	if _, err := Announce(Server{URL: "u"}, filepath.Join(file, "below"), good); err == nil {
		t.Error("no error")
	}
	if _, err := Find(good); err != nil {
		t.Error(err)
	}
	must.Succeed(t, os.WriteFile(filepath.Join(good, fileName), []byte("{"), 0o600))
	if _, err := Find(good); err == nil || errors.Is(err, ErrNoServer) {
		t.Errorf("%v, want what is wrong with the file", err)
	}
}
