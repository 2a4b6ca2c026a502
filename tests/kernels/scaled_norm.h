#pragma once
constexpr double kFactor = 1.0;
