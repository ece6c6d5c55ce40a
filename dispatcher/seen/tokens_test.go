package seen

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// tokenRecorder is a ledger that records which uses of tokens are written. It fails while it is down.
type tokenRecorder struct {
	uses []store.TokenUse
	down bool
}

func (*tokenRecorder) TouchDevices(context.Context, map[string]store.LastReport) error { return nil }

func (u *tokenRecorder) RecordTokenUses(_ context.Context, uses []store.TokenUse) error {
	if u.down {
		return errors.New("down for the test")
	}
	u.uses = append(u.uses, uses...)
	return nil
}

// TestTokensAreWrittenOnceAMinute checks that the uses of a token are written at most once a minute, however often the token is used, and
// that no use is lost: uses that come too soon after a write, and uses whose write failed, are written later.
func TestTokensAreWrittenOnceAMinute(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ledger := &tokenRecorder{down: true}
	tokens := NewDevices(ledger, nil, func() time.Time { return now }).Tokens
	flush := func(want ...store.TokenUse) {
		t.Helper()
		ledger.uses = nil
		if err := tokens.writeUses(t.Context()); (err != nil) != ledger.down {
			t.Fatal(err)
		}
		if !slices.Equal(ledger.uses, want) {
			t.Errorf("written: %v, want %v", ledger.uses, want)
		}
	}
	tokens.RecordUse(7)
	tokens.RecordUse(8)
	flush()
	ledger.down = false
	tokens.RecordUse(7)
	flush(store.TokenUse{Token: 7, Requests: 2}, store.TokenUse{Token: 8, Requests: 1})
	now = now.Add(59 * time.Second)
	tokens.RecordUse(7)
	tokens.RecordUse(9)
	flush(store.TokenUse{Token: 9, Requests: 1})
	now = now.Add(time.Second)
	tokens.RecordUse(7)
	flush(store.TokenUse{Token: 7, Requests: 2})
	now = now.Add(time.Hour)
	flush()
}
