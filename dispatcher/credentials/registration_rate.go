package credentials

import (
	"encoding/hex"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/devices"
)

// RegistrationRate limits how many devices one registrant (a fleet token, or all sessions) may register.
type RegistrationRate struct {
	PerSecond int // registrations a second on average; 0 means that there is no limit
	Burst     int // registrations at once; at least 1
}

// registrationLimit applies a RegistrationRate to each registrant. It is safe for concurrent use.
type registrationLimit struct {
	rate RegistrationRate
	now  func() time.Time

	mu     sync.Mutex
	usedUp map[string]time.Time // per registrant, the time at which its whole burst is available again
}

// newRegistrationLimit returns a registrationLimit at which the burst of each registrant is available.
func newRegistrationLimit(rate RegistrationRate, now func() time.Time) *registrationLimit {
	return &registrationLimit{rate: rate, now: now, usedUp: make(map[string]time.Time)}
}

// take counts one registration by registrant, or returns devices.ErrRegistrationRate if the rate of registrant is used up. There are few
// registrants, so none is ever forgotten.
func (l *registrationLimit) take(registrant string) error {
	if l.rate.PerSecond == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now, each := l.now(), time.Second/time.Duration(l.rate.PerSecond)
	free := l.usedUp[registrant]
	if free.Before(now) {
		free = now
	}
	if free.Add(each).Sub(now) > each*time.Duration(l.rate.Burst) {
		return devices.ErrRegistrationRate
	}
	l.usedUp[registrant] = free.Add(each)
	return nil
}

// registrantSession is the registrant of all devices that are registered by a session at an MQTT broker.
const registrantSession = "session"

// registrantOf returns the registrant of the caller's device: "session", or "fleet:" and the first eight hexadecimal digits of the SHA-256
// of the fleet token. This names the token without giving away a secret.
func registrantOf(caller devices.Caller) string {
	if caller.Via == devices.ViaFleetToken {
		return "fleet:" + hex.EncodeToString(caller.Token[:4])
	}
	return registrantSession
}
