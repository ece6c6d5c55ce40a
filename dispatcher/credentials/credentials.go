package credentials

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// Authenticate says who the bearer of token is, reporting as device. It
// returns devices.ErrUnauthenticated for a token nobody has, devices.ErrForbidden for another
// device's.
func (r *Registry) Authenticate(ctx context.Context, device devices.ID, token string) (devices.Caller, error) {
	return r.authenticate(ctx, device, token, r.bears)
}

func (r *Registry) authenticate(
	ctx context.Context, device devices.ID, token string, bears func(context.Context, devices.Caller) error,
) (devices.Caller, error) {
	if token == "" {
		return devices.Caller{}, devices.ErrUnauthenticated
	}
	for _, fleet := range r.config.FleetTokens {
		if subtle.ConstantTimeCompare([]byte(fleet), []byte(token)) == 1 {
			return devices.Caller{Device: device, Via: devices.ViaFleetToken}, nil
		}
	}
	caller := devices.Caller{Device: device, Via: devices.ViaOwnToken, Token: HashToken(token)}
	if err := bears(ctx, caller); err != nil {
		return devices.Caller{}, err
	}
	return caller, nil
}

// bears checks that the caller's token is its device's. A change is missed for at most five
// seconds.
func (r *Registry) bears(ctx context.Context, caller devices.Caller) error {
	ok, drops := r.known.bears(caller)
	if ok {
		return nil
	}
	t, err := r.known.find(ctx, caller.Token)
	if err = owns(caller, t, err); err == nil {
		r.known.bore(caller, t, drops)
	}
	return err
}

func owns(caller devices.Caller, t store.Token, err error) error {
	if err == nil && t.Device != string(caller.Device) {
		return devices.ErrForbidden
	}
	return err
}

// AuthenticateSession says whether a device may open a session at a broker
// with this token; its reports then come as devices.ViaSession. It returns what
// Authenticate does, and devices.ErrForbidden for a blocked device and for a fleet
// token that only enrols, or of a device that has its own. A session outlives what is remembered of
// a token, so the ledger itself is asked.
func (r *Registry) AuthenticateSession(ctx context.Context, device devices.ID, token string) error {
	caller, err := r.authenticate(ctx, device, token, r.known.bearsInLedger)
	if err != nil {
		return err
	}
	view, err := r.config.Look(ctx, device)
	if err != nil {
		return err
	}
	switch {
	case view.Device != nil && view.Device.Blocked:
		return devices.ErrForbidden
	case caller.Via == devices.ViaOwnToken:
		return r.admitOwner(ctx, device, view.Device)
	case r.config.FleetMode != FleetAny || view.Device != nil && view.Device.OwnToken:
		return devices.ErrForbidden
	case view.Deleted:
		// A session does not bring back a deleted device; a fleet token does.
		back, err := r.ensure(ctx, device)
		if err == nil && back.Blocked {
			err = devices.ErrForbidden
		}
		return err
	}
	return nil
}

// TokenOf looks a bearer token up. A change of it is missed for at most five seconds.
func (r *Registry) TokenOf(ctx context.Context, token string) (store.Token, error) {
	if token == "" {
		return store.Token{}, devices.ErrUnauthenticated
	}
	return r.known.find(ctx, HashToken(token))
}

// NewToken makes a secret of 256 bits; only its hash is ever stored.
func NewToken() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// HashToken is how a secret is stored: 256 random bits need no salt.
func HashToken(token string) [sha256.Size]byte { return sha256.Sum256([]byte(token)) }
