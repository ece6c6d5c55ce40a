// Package pace limits how often each device may report to this replica. A report above the limit is refused before it is decoded, which costs
// little. So a device that reports without pause does not delay the other devices. The package also limits how many unknown devices one fleet
// token registers.
package pace

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/devices"
)

const (
	shardCount     = 16
	maxPerShard    = 8192             // buckets of a shard; a further device is not limited
	sweepEvery     = time.Second      // interval at which a shard forgets devices whose bucket is full
	answerInterval = time.Second      // shortest time between two answered refusals of one device
	noisyAfter     = 10 * time.Second // duration of the excess after which a device is noisy
)

// OverRate is the reason under which a transport counts a report that a Limiter has refused (see CountReport of devices.Handler).
const OverRate = "over_rate"

// Options configures a Limiter.
type Options struct {
	Rate  int              // reports a second that a device may send on average; 0 means no limit
	Burst int              // reports that a device may send at once; at least 1
	Now   func() time.Time // used for elapsed time only; default time.Now
}

// Limiter has a token bucket for each device that reported a moment ago. A full bucket is not stored, so the memory depends on the number of
// recent reports and not on the number of devices. Limiter is safe for concurrent use. A nil Limiter limits nothing.
type Limiter struct {
	options  Options
	interval time.Duration // time in which a bucket gains one token
	seed     maphash.Seed
	shards   [shardCount]shard
}

// New returns a Limiter in which all buckets are full, or nil if Rate is 0.
func New(options Options) *Limiter {
	if options.Rate <= 0 {
		return nil
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	options.Burst = max(options.Burst, 1)
	l := &Limiter{options: options, interval: time.Second / time.Duration(options.Rate), seed: maphash.MakeSeed()}
	for i := range l.shards {
		l.shards[i].buckets = make(map[sender]*bucket)
	}
	return l
}

// shard has the buckets of a part of the devices. A hash of the device's id selects its shard.
type shard struct {
	mu      sync.Mutex
	buckets map[sender]*bucket
	swept   time.Time
}

// sender is the key of a bucket. A device has one bucket for each way in which it authenticates, because anybody with a fleet token may use
// the name of any device, and must not empty the bucket of the device itself.
type sender struct {
	device devices.ID
	via    devices.Via
}

// bucket is the token bucket of a sender. It also records whether the sender exceeds its limit now. This excess lasts from a refused report
// until the bucket is full again.
type bucket struct {
	fullAt      time.Time // when the bucket is full if no further report is accepted
	answered    time.Time // when a refusal was last answered
	excessSince time.Time // when the excess began; zero without an excess
	refused     time.Time // the last refused report of the excess
	reports     int       // reports since excessSince, including accepted ones
}

func (l *Limiter) shardFor(device devices.ID) *shard {
	return &l.shards[maphash.String(l.seed, string(device))%shardCount]
}

// Take takes a token from a bucket for one report of device, which authenticated in the way via. hasToken is false if the bucket is empty.
// Then the report must be refused.
func (l *Limiter) Take(device devices.ID, via devices.Via) (hasToken bool) {
	if l == nil {
		return true
	}
	now, s, key := l.options.Now(), l.shardFor(device), sender{device, via}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleteFullBuckets(now)
	b := s.buckets[key]
	switch {
	case b == nil && len(s.buckets) >= maxPerShard:
		return true
	case b == nil:
		b = &bucket{fullAt: now}
		s.buckets[key] = b
	case !b.fullAt.After(now):
		*b = bucket{fullAt: now, answered: b.answered}
	}
	return b.takeToken(now, l.interval, l.options.Burst)
}

// takeToken counts a report at the time now, and takes a token if there is one. interval is the time in which the bucket gains a token, and
// burst is the number of tokens in a full bucket.
func (b *bucket) takeToken(now time.Time, interval time.Duration, burst int) (hasToken bool) {
	hasToken = b.fullAt.Add(interval).Sub(now) <= time.Duration(burst)*interval
	if hasToken {
		b.fullAt = b.fullAt.Add(interval)
	} else if b.refused = now; b.excessSince.IsZero() {
		b.excessSince = now
	}
	if !b.excessSince.IsZero() {
		b.reports++
	}
	return hasToken
}

// deleteFullBuckets deletes the full buckets, at most once in sweepEvery.
func (s *shard) deleteFullBuckets(now time.Time) {
	if now.Sub(s.swept) < sweepEvery {
		return
	}
	s.swept = now
	for key, b := range s.buckets {
		if !b.fullAt.After(now) {
			delete(s.buckets, key)
		}
	}
}

// MayAnswer reports whether a refusal may be sent to the device now, after Take has returned false. It allows one refusal a second for each
// device and way of authentication. All other refused reports get no answer, because their answers would delay the answers to other devices.
func (l *Limiter) MayAnswer(device devices.ID, via devices.Via) bool {
	if l == nil {
		return true
	}
	now, s := l.options.Now(), l.shardFor(device)
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.buckets[sender{device, via}]
	if b == nil {
		return true
	}
	if !b.answered.IsZero() && now.Sub(b.answered) < answerInterval {
		return false
	}
	b.answered = now
	return true
}

// NoisyDevice is a device that has exceeded its limit for 10 s without a break.
type NoisyDevice struct {
	Device devices.ID
	Via    devices.Via
	Rate   int // reports a second since the excess began
}

// Noisy returns the devices that are noisy now, in ascending order of ids. A device can appear once for each way in which it authenticates.
func (l *Limiter) Noisy() (noisy []NoisyDevice) {
	if l == nil {
		return nil
	}
	now := l.options.Now()
	for i := range l.shards {
		noisy = append(noisy, l.shards[i].noisyDevices(now)...)
	}
	slices.SortFunc(noisy, func(a, b NoisyDevice) int { return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Via, b.Via)) })
	return noisy
}

// noisyDevices returns the devices of the shard that are noisy at the time now.
func (s *shard) noisyDevices(now time.Time) (noisy []NoisyDevice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for from, b := range s.buckets {
		if excess := b.refused.Sub(b.excessSince); excess >= noisyAfter && b.fullAt.After(now) {
			noisy = append(noisy, NoisyDevice{from.device, from.via, int(float64(b.reports) / excess.Seconds())})
		}
	}
	return noisy
}
