package operators

// Profile is a named set of policies for devices. The policies limit the task starts of all devices with this profile, in every pool.
type Profile struct {
	Name         string   `json:"name" readOnly:"true"`
	Limits       []Policy `json:"limits" doc:"How often its devices may start tasks; each pool is counted separately"`
	MetadataOnly bool     `json:"metadata_only" doc:"true: devices that report by hawkBit's DDI also get tasks whose payload is no deployment, as a deployment without artifacts"`
	Version      int64    `json:"version" readOnly:"true" doc:"Increases with every change"`
	Created      Time     `json:"created_at" readOnly:"true"`
	Updated      Time     `json:"updated_at" readOnly:"true"`
}

// ProfileChanged is a profile after a change.
type ProfileChanged struct {
	Profile
	WarningList
}

// ProfileSettings has all settings of a profile that an operator can set.
type ProfileSettings struct {
	Limits       []Policy `json:"limits,omitempty" nullable:"true" doc:"The complete list; empty: the profile limits nothing" flag:"policies that limit how often tasks may start: a JSON list, or @FILE with one"`
	MetadataOnly bool     `json:"metadata_only,omitempty" doc:"true: devices that report by hawkBit's DDI also get tasks whose payload is no deployment, as a deployment without artifacts" flag:"devices that report by hawkBit's DDI also get tasks whose payload is no deployment"`
}

// ProfileList is a page of profiles.
type ProfileList struct {
	Profiles      []Profile `json:"profiles"`
	NextPageToken string    `json:"next_page_token,omitempty"`
}

// Profiles has the calls about profiles, whose policies limit how often devices start tasks.
type Profiles struct {
	List   List[All, Profile]                                `op:"GET /v1/profiles" id:"listProfiles" role:"viewer" doc:"List profiles by name"`
	Get    Call[string, Profile]                             `op:"GET /v1/profiles/{profile}" id:"getProfile" role:"viewer" doc:"Read a profile"`
	Put    CallWith[string, ProfileSettings, ProfileChanged] `op:"PUT /v1/profiles/{profile}" id:"putProfile" role:"admin" doc:"Create a profile or replace its policies"`
	Delete Remove[string]                                    `op:"DELETE /v1/profiles/{profile}" id:"deleteProfile" role:"admin" status:"204" doc:"Delete a profile that no device has"`
}
