package seen

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// tokenRecorder is a ledger that records which tokens are written as used. It fails while it is down.
type tokenRecorder struct {
	ids  []int64
	down bool
}

func (*tokenRecorder) TouchDevices(context.Context, map[string]store.LastReport) error { return nil }

func (u *tokenRecorder) TouchTokens(_ context.Context, ids []int64) error {
	if u.down {
		return errors.New("down for the test")
	}
	u.ids = append(u.ids, ids...)
	return nil
}

// The last use of a token is written at most once an hour, however often the token is used. If the write fails, it
// is repeated later.
func TestTokensAreWrittenOnceAnHour(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ledger := &tokenRecorder{down: true}
	tokens := NewDevices(ledger, nil, func() time.Time { return now }).Tokens
	flush := func(want ...int64) {
		t.Helper()
		ledger.ids = nil
		if err := tokens.flush(t.Context()); (err != nil) != ledger.down {
			t.Fatal(err)
		}
		if !slices.Equal(ledger.ids, want) {
			t.Errorf("written: %v, want %v", ledger.ids, want)
		}
	}
	tokens.Use(7)
	tokens.Use(8)
	flush()
	ledger.down = false
	tokens.Use(7)
	flush(7, 8)
	now = now.Add(59 * time.Minute)
	tokens.Use(7)
	flush()
	now = now.Add(time.Minute)
	tokens.Use(7)
	flush(7)
}
