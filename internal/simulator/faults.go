package simulator

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Faults are how often devices misbehave, each a probability in 0..1. They
// never break the lease rule: that is what the promises are made for.
type Faults struct {
	Silent      float64 // per grant: holds it to the end of the lease and says nothing
	Gone        float64 // per grant: as silent, and never heard of again
	Late        float64 // per silent grant: its result is kept and sent after all
	Slow        float64 // per grant: works 0.6-1.5 leases, renewing
	Reboot      float64 // per grant: forgets the running task on the way
	Duplicate   float64 // per report: sends it twice
	LostReplies float64 // per report: never sees the reply
	Garbage     float64 // per report: sends a malformed one first
}

func (f Faults) validate() error {
	var errs []error
	for _, k := range []struct {
		name string
		p    float64
	}{
		{"silent", f.Silent},
		{"gone", f.Gone},
		{"late", f.Late},
		{"slow", f.Slow},
		{"reboot", f.Reboot},
		{"duplicate", f.Duplicate},
		{"lost replies", f.LostReplies},
		{"garbage", f.Garbage},
	} {
		if !(k.p >= 0 && k.p <= 1) {
			errs = append(errs, fmt.Errorf("%s: probability %v is not within 0..1", k.name, k.p))
		}
	}
	return errors.Join(errs...)
}

// dice are the seeded random draws of one device. Not for concurrent use.
type dice struct{ *rand.Rand }

func newDice(seed, stream uint64) dice { return dice{rand.New(rand.NewPCG(seed, stream))} }

// chance is true with probability p.
func (d dice) chance(p float64) bool { return p > 0 && d.Float64() < p }

// between draws a duration in [low, high).
func (d dice) between(low, high time.Duration) time.Duration {
	if high <= low {
		return low
	}
	return low + time.Duration(d.Int64N(int64(high-low)))
}

// around draws a duration within 50 % of mean.
func (d dice) around(mean time.Duration) time.Duration { return d.between(mean/2, mean*3/2) }

// garbage returns a report that must be refused whole.
func (d dice) garbage() []byte {
	switch d.IntN(6) {
	case 0:
		return []byte(`{"id": "torn`)
	case 1:
		return []byte(`{"results": "none"}`)
	case 2:
		return []byte(`["not", "a", "report"]`)
	case 3:
		return []byte(strings.Repeat(`{"a":`, 40) + "1" + strings.Repeat("}", 40))
	case 4:
		entry := `{"task":1,"token":1,"status":"failed"},`
		return []byte(`{"results":[` + strings.Repeat(entry, 100) + entry[:len(entry)-1] + `]}`)
	default:
		return append([]byte(`{"filler":"`), append(bytes.Repeat([]byte("x"), 66<<10), `"}`...)...)
	}
}
