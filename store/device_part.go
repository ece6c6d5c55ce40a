package store

import "context"

// DevicesWithIDPart searches at most maxSearched of the devices that match f, in ascending order of ids, for ids that contain part. It
// ignores upper and lower case.
func (s devices) DevicesWithIDPart(ctx context.Context, f DeviceFilter, part string, maxSearched int) (DeviceSearchPage, error) {
	return s.searchDevices(ctx, f, like("id", "%s"), likePattern(part), maxSearched)
}
