package throttle_test

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/throttle"
)

func TestRepeatedComplaintsAreLoggedOnceASecond(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	now := time.Unix(0, 0)
	plain := slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	log := throttle.NewLogger(slog.New(plain), func() time.Time { return now })
	log.Warn("down", "n", 1)
	log.Error("worse")
	log.Info("news")
	log.Info("news")
	now = now.Add(time.Second / 2) // a line that is left out does not delay the next one
	log.Warn("down", "n", 2)
	log.With("of", "another").Warn("down", "n", 3)
	now = now.Add(time.Second / 2)
	log.Warn("down", "n", 4)
	log.Error("worse")
	want := `level=WARN msg=down n=1
level=ERROR msg=worse
level=INFO msg=news
level=INFO msg=news
level=WARN msg=down n=4 left_out=2
level=ERROR msg=worse
`
	if out.String() != want {
		t.Errorf("logged\n%swant\n%s", out.String(), want)
	}
}
