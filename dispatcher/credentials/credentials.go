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

// Authenticate returns the Caller for a report of device with this token. It returns devices.ErrUnauthenticated if the token does not
// exist, and devices.ErrForbidden if it belongs to another device.
func (r *Registry) Authenticate(ctx context.Context, device devices.ID, token string) (devices.Caller, error) {
	return r.authenticate(ctx, device, token, r.checkToken)
}

// AuthenticateFromCache returns the Caller for a report of device with this token. It asks only the cache. isValid is true if the cache has the
// token as a valid token of the device itself.
func (r *Registry) AuthenticateFromCache(device devices.ID, token string) (caller devices.Caller, isValid bool) {
	caller = devices.Caller{Device: device, Via: devices.ViaOwnToken, Token: HashToken(token)}
	isValid, _ = r.hasValidToken(caller)
	return caller, isValid
}

// authenticate returns the caller that reports as device with this token. If the token is no fleet token, check decides whether the caller is
// accepted.
func (r *Registry) authenticate(ctx context.Context, device devices.ID, token string, check func(context.Context, devices.Caller) error) (devices.Caller, error) {
	if token == "" {
		return devices.Caller{}, devices.ErrUnauthenticated
	}
	for _, fleet := range r.config.FleetTokens {
		if subtle.ConstantTimeCompare([]byte(fleet), []byte(token)) == 1 {
			return devices.Caller{Device: device, Via: devices.ViaFleetToken, Token: HashToken(token)}, nil
		}
	}
	caller := devices.Caller{Device: device, Via: devices.ViaOwnToken, Token: HashToken(token)}
	if err := check(ctx, caller); err != nil {
		return devices.Caller{}, err
	}
	return caller, nil
}

// checkToken checks that the caller's token belongs to its device. A change of the token takes effect within five seconds.
func (r *Registry) checkToken(ctx context.Context, caller devices.Caller) error {
	ok, drops := r.hasValidToken(caller)
	if ok {
		return nil
	}
	t, err := r.findToken(ctx, caller.Token)
	if err = checkTokenOwner(caller, t, err); err == nil {
		r.cacheValidTokenOfCaller(caller, t, drops)
	}
	return err
}

// checkTokenOwner returns devices.ErrForbidden if the stored token of the caller belongs to another device. storedToken and searchErr are the
// results of the search for this token. If searchErr is not nil, checkTokenOwner returns it.
func checkTokenOwner(caller devices.Caller, storedToken store.Token, searchErr error) error {
	if searchErr == nil && storedToken.Device != string(caller.Device) {
		return devices.ErrForbidden
	}
	return searchErr
}

// AuthenticateSession checks that a device may open a session at a broker with this token. It returns the errors of Authenticate. It also
// returns devices.ErrForbidden for a blocked device, for a fleet token that may only enroll, and for a fleet token if the device has used a
// token of its own. It reads the token from the ledger and not from the cache, because a session lasts long.
func (r *Registry) AuthenticateSession(ctx context.Context, device devices.ID, token string) error {
	caller, err := r.authenticate(ctx, device, token, r.checkTokenInLedger)
	if err != nil {
		return err
	}
	view, err := r.config.ReadView(ctx, device)
	if err != nil {
		return err
	}
	switch {
	case view.Device != nil && view.Device.Blocked:
		return devices.ErrForbidden
	case caller.Via == devices.ViaOwnToken:
		return r.admitByOwnToken(ctx, device, view.Device)
	case r.config.FleetMode != FleetAny || view.Device != nil && view.Device.OwnToken:
		return devices.ErrForbidden
	case view.Deleted:
		// A fleet token may register a deleted device again. This must happen now, because a report of the session cannot do it later.
		back, err := r.ensureDevice(ctx, caller)
		if err == nil && back.Blocked {
			err = devices.ErrForbidden
		}
		return err
	}
	return nil
}

// FindStoredToken returns the stored token whose secret is token, or devices.ErrUnauthenticated if there is none. A change of the stored token
// takes effect within five seconds.
func (r *Registry) FindStoredToken(ctx context.Context, token string) (store.Token, error) {
	if token == "" {
		return store.Token{}, devices.ErrUnauthenticated
	}
	return r.findToken(ctx, HashToken(token))
}

// NewToken returns a new secret of 256 random bits. Only its hash is ever stored.
func NewToken() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// HashToken returns the hash under which the secret token is stored. The hash has no salt, because a secret has 256 random bits.
func HashToken(token string) [sha256.Size]byte { return sha256.Sum256([]byte(token)) }
