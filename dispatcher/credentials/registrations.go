package credentials

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/pace"
	"github.com/fleetslots/dispatcher/store"
)

// registrationLimiter limits and counts the registrations of each registrant. A registrant is a fleet token, or all sessions together.
type registrationLimiter struct {
	limiter *pace.Limiter          // nil means that there is no limit
	counter *prometheus.CounterVec // counts the devices that were registered
}

func newRegistrationLimiter(config Config) *registrationLimiter {
	rate := config.Rate
	rate.Now = config.Now
	r := &registrationLimiter{limiter: pace.New(rate)}
	r.counter = config.Meters.Counter("devices_registered_total", "Devices that registered themselves, by fleet token; session: by a session at an MQTT broker.", "by")
	r.counter.WithLabelValues(registrantSession) // creates the counter with the value 0: Prometheus computes no increase for the first value of a counter
	for _, token := range config.FleetTokens {
		r.counter.WithLabelValues(fleetTokenName(HashToken(token)))
	}
	return r
}

func (r *registrationLimiter) countRegistration(registrant string) {
	r.counter.WithLabelValues(registrant).Inc()
}

// reserveRegistration counts one registration against the rate of registrant. If the rate is exceeded, it returns devices.ErrRegistrationRate.
func (r *registrationLimiter) reserveRegistration(registrant string) error {
	if !r.limiter.Take(devices.ID(registrant), devices.ViaFleetToken) { // the limiter counts by name, here by the name of a registrant
		return devices.ErrRegistrationRate
	}
	return nil
}

// registrantSession is the name under which the limiter counts the registrations over MQTT. All MQTT sessions share it.
const registrantSession = store.SessionRegistrant

func registrantOf(caller devices.Caller) string {
	if caller.Via == devices.ViaFleetToken {
		return fleetTokenName(caller.Token)
	}
	return registrantSession
}

// fleetTokenName returns "fleet:" and the first eight digits of the hash of a fleet token. The digits distinguish the two tokens of a rotation,
// and do not reveal a random token.
func fleetTokenName(hash [sha256.Size]byte) string {
	return store.FleetTokenPrefix + hex.EncodeToString(hash[:4])
}
