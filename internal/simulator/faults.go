package simulator

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"time"
)

// Faults holds the probabilities, in 0..1, with which the devices of Run misbehave. A device never breaks the lease rule,
// because the dispatcher's promises rely on it.
//
// "Per grant" means that device.startTask draws the fault at random at each start of a task, also after a reboot. At most
// one of Silent, Gone and Reboot occurs. The probability of Gone applies only if Silent does not occur. The probability
// of Reboot applies only if neither occurs.
type Faults struct {
	Silent      float64 // per grant: holds the slot to the end of the lease and sends no report
	Gone        float64 // per grant: becomes silent, and never reports again
	Late        float64 // per silent grant: its result is kept and sent later
	Slow        float64 // per grant: works 0.6 to 1.5 leases, and renews
	Reboot      float64 // per grant: reboots during the work and forgets the task; the task starts again when its grant is redelivered
	Duplicate   float64 // per report: sends a copy, in half of the cases at the same time, otherwise after the first reply
	LostReplies float64 // per report: does not receive the reply
	Garbage     float64 // per report: sends a malformed report before it
}

// dice is the seeded random number generator of one device. It is not safe for concurrent use.
type dice struct{ *rand.Rand }

// newDice returns a random number generator. Equal values of seed and stream give equal numbers.
func newDice(seed, stream uint64) dice { return dice{rand.New(rand.NewPCG(seed, stream))} }

func (d dice) happens(probability float64) bool { return probability > 0 && d.Float64() < probability }

// randomBetween returns a random duration in [low, high).
func (d dice) randomBetween(low, high time.Duration) time.Duration {
	if high <= low {
		return low
	}
	return low + time.Duration(d.Int64N(int64(high-low)))
}

// randomAround returns a random duration between 0.5 and 1.5 times mean.
func (d dice) randomAround(mean time.Duration) time.Duration {
	return d.randomBetween(mean/2, mean*3/2)
}

func (d dice) newMalformedReport() (body []byte) {
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
