package credentials

import (
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// RegistrationRate limits how many devices one registrant (a fleet token, or all sessions) may register.
type RegistrationRate struct {
	PerSecond int // registrations a second on average; 0 means that there is no limit
	Burst     int // registrations at once; at least 1
}

// registrations limits and counts the registrations of each registrant. It is safe for concurrent use.
type registrations struct {
	rate    RegistrationRate
	now     func() time.Time
	counter *prometheus.CounterVec // the devices that were registered

	mu     sync.Mutex
	usedUp map[string]time.Time // per registrant, the time at which its whole burst is available again
}

// newRegistrations returns registrations at which the burst of each registrant is available.
func newRegistrations(config Config) *registrations {
	r := &registrations{rate: config.Rate, now: config.Now, usedUp: make(map[string]time.Time)}
	r.counter = config.Meters.Counter("devices_registered_total", "Devices that registered themselves, by fleet token; session: by a session at an MQTT broker.", "by")
	r.counter.WithLabelValues(registrantSession) // Prometheus computes no increase for the first value of a counter
	for _, token := range config.FleetTokens {
		r.counter.WithLabelValues(fleetTokenName(HashToken(token)))
	}
	return r
}

// count counts a device that registrant registered.
func (r *registrations) count(registrant string) { r.counter.WithLabelValues(registrant).Inc() }

// take counts one registration by registrant, or returns devices.ErrRegistrationRate if the rate of registrant is used up. There are few
// registrants, so none is ever forgotten.
func (r *registrations) take(registrant string) error {
	if r.rate.PerSecond == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	each := time.Second / time.Duration(r.rate.PerSecond)
	free := r.usedUp[registrant]
	if free.Before(now) {
		free = now
	}
	if free.Add(each).Sub(now) > each*time.Duration(r.rate.Burst) {
		return devices.ErrRegistrationRate
	}
	r.usedUp[registrant] = free.Add(each)
	return nil
}

// registrantSession is the registrant of all devices that are registered by a session at an MQTT broker.
const registrantSession = store.SessionRegistrant

// registrantOf returns the registrant of the caller's device: the name of the fleet token, or registrantSession.
func registrantOf(caller devices.Caller) string {
	if caller.Via == devices.ViaFleetToken {
		return fleetTokenName(caller.Token)
	}
	return registrantSession
}

// fleetTokenName returns the name of the fleet token with this hash: "fleet:" and the first eight hexadecimal digits of the hash. They tell
// the tokens of a rotation apart, and do not reveal a random token.
func fleetTokenName(hash [sha256.Size]byte) string {
	return store.FleetTokenPrefix + hex.EncodeToString(hash[:4])
}
