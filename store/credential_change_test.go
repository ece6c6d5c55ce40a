package store_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// changedHashes calls ChangedTokens(from). It returns the hashes of the changed tokens (with their devices) and the argument for the next call.
func (l *ledger) changedHashes(from int64) (hashes []string, next int64) {
	l.Helper()
	changes, err := l.ChangedTokens(l.Context(), from)
	l.must(err)
	if off := time.Since(changes.Now).Abs(); off > time.Minute {
		l.Errorf("it is %s", changes.Now)
	}
	for _, c := range changes.Tokens {
		hashes = append(hashes, strings.TrimSuffix(string(c.Hash)+" of "+c.Device, " of "))
	}
	slices.Sort(hashes)
	return slices.Compact(hashes), changes.Next
}

// TestEveryChangeOfATokenIsRead runs each kind of statement that changes tokens. ChangedTokens must return each change at least once.
func TestEveryChangeOfATokenIsRead(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		_, next := l.changedHashes(0)
		var before []string
		rotate := func(list ...store.NewDevice) {
			_, err := l.ImportDevices(l.Context(), "op", list, store.RotateExisting, time.Minute, 0)
			l.must(err)
		}
		for _, step := range []struct {
			do   func()
			want []string
		}{
			{func() {
				rotate(store.NewDevice{ID: "i1", Hash: []byte("1")}, store.NewDevice{ID: "i2", Hash: []byte("2")})
			}, nil},
			{func() {
				rotate(store.NewDevice{ID: "i1", Hash: []byte("3")}, store.NewDevice{ID: "i2", Hash: []byte("4")})
			}, []string{"1 of i1", "2 of i2"}},
			{func() { l.must(l.enroll("a", []byte("a1"), nil)) }, nil},
			{func() { l.must(l.enroll("a", []byte("a2"), nil)) }, []string{"a1 of a"}},
			{func() { l.rotateToken("a3", time.Hour) }, []string{"a2 of a"}},
			{func() { l.rotateToken("a4", 0) }, []string{"a2 of a", "a3 of a"}},
			{func() { l.rotateToken("a5", 0) }, []string{"a2 of a", "a3 of a", "a4 of a"}}, // Two tokens have ended and are deleted.
			{func() { _, err := l.DeleteDevice(l.Context(), "op", "a", false); l.must(err) }, []string{"a4 of a", "a5 of a"}},
			{func() {
				token, err := l.CreateToken(l.Context(), "op", store.Token{Name: "n"}, []byte("n"))
				l.must(err)
				_, err = l.RevokeToken(l.Context(), "op", token.ID)
				l.must(err)
			}, []string{"n"}},
			{func() { _, err := l.ProtectAfterRestore(l.Context(), "op", 0); l.must(err) }, []string{""}},
		} {
			step.do()
			found, after := l.changedHashes(next)
			// Postgres returns a change again as long as an older transaction is open in any database of the
			// server. Other tests have such transactions, so a repeated change is no failure.
			again := func(hash string) bool { return l.Dialect() == "postgres" && slices.Contains(before, hash) }
			news := slices.DeleteFunc(found, func(hash string) bool { return again(hash) && !slices.Contains(step.want, hash) })
			if !slices.Equal(news, step.want) {
				l.Errorf("%q, want %q", news, step.want)
			}
			before, next = append(before, step.want...), after
		}
	})
}

// TestAChangeThatCommitsLateIsRead writes a change of a token before the changes are read, and commits it after the reading. The next
// reading must return this change, even if the first reading returned changes that began later.
func TestAChangeThatCommitsLateIsRead(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	for _, id := range []string{"a", "b"} {
		_, err := l.CreateDevice(l.Context(), "op", id, store.DeviceSpec{}, []byte(id), nil)
		l.must(err)
	}
	_, next := l.changedHashes(0)
	late, err := l.DB().BeginTx(l.Context(), nil)
	l.must(err)
	defer func() { _ = late.Rollback() }()
	_, err = late.ExecContext(l.Context(), `DELETE FROM tokens WHERE device = 'a'`)
	l.must(err)
	_, err = l.DeleteDevice(l.Context(), "op", "b", false)
	l.must(err)
	found, next := l.changedHashes(next)
	if !slices.Equal(found, []string{"b of b"}) {
		t.Fatalf("%q, want b", found)
	}
	l.must(late.Commit())
	if found, _ := l.changedHashes(next); !slices.Contains(found, "a of a") {
		t.Errorf("%q, want a", found)
	}
}

// TestOldChangesOfTokensGo checks that old rows of token_changes are deleted. Their retention does not depend on
// other retention times.
func TestOldChangesOfTokensGo(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		for _, id := range []string{"a", "b", "c"} {
			_, err := l.CreateDevice(l.Context(), "op", id, store.DeviceSpec{}, []byte(id), nil)
			l.must(err)
			_, err = l.DeleteDevice(l.Context(), "op", id, false)
			l.must(err)
		}
		_, next := l.changedHashes(0)
		l.wantRetained(0, 10, store.DeletedCounts{})
		l.exec(`UPDATE token_changes SET at = at - $1 * {ms}`, (3 * time.Hour).Milliseconds())
		_, err := l.CreateDevice(l.Context(), "op", "d", store.DeviceSpec{}, []byte("d"), nil)
		l.must(err)
		_, err = l.DeleteDevice(l.Context(), "op", "d", false)
		l.must(err)
		l.wantRetained(0, 2, store.DeletedCounts{TokenChanges: 2})
		l.wantRetained(0, 2, store.DeletedCounts{TokenChanges: 1})
		if found, _ := l.changedHashes(0); !slices.Equal(found, []string{"d of d"}) {
			l.Errorf("%q left, want d", found)
		}
		l.exec(`DELETE FROM token_changes`)
		_, err = l.CreateDevice(l.Context(), "op", "e", store.DeviceSpec{}, []byte("e"), nil)
		l.must(err)
		_, err = l.DeleteDevice(l.Context(), "op", "e", false)
		l.must(err)
		if found, _ := l.changedHashes(next); !slices.Equal(found, []string{"e of e"}) { // The position is also valid after all changes were deleted.
			l.Errorf("%q, want e", found)
		}
	})
}
