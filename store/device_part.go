package store

import "context"

// DevicesWithIDPart searches at most maxSearched of the devices that match filter, in ascending order of ids, for ids that contain idPart.
// It ignores upper and lower case.
func (s devices) DevicesWithIDPart(ctx context.Context, filter DeviceFilter, idPart string, maxSearched int) (DeviceSearchPage, error) {
	return s.searchDevices(ctx, filter, like("id", "%s"), likePattern(idPart), maxSearched)
}
